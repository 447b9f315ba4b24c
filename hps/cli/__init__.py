"""cli of hps."""
