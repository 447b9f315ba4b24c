"""Rows moving between a cache and the tier below it: fetch, pin, update, write back."""
