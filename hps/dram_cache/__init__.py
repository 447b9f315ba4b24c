"""dram_cache of hps."""
