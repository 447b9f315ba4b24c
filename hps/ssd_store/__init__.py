"""ssd_store of hps."""
