"""Helpers without state that every layer may use: arrays, checks, formats of small files, names."""
