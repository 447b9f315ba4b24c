"""Benchmarks of hps beside its peers; start at benchmarks/README.md and benchmarks/run.py."""
