"""The SSD tier in RocksDB, for stores that other tools read."""
