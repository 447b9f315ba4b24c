"""Readable Python twins of the native tiers, and the tier choices that tests run over."""
