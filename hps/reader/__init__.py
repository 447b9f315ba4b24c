"""reader of hps."""
