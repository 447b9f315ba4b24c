"""models of hps."""
