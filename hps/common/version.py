"""The version of hps, for those who write it down. Above it: hps/__init__.py. Below it: nothing."""

__version__ = "0.1.0"
