"""What the benchmarks share: timing, reports, key streams, peers."""
