"""pipeline of hps."""
