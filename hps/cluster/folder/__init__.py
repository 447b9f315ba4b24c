"""A cluster's folder as its ranks open it: lock, checkpoints, rows that move to other ranks."""
