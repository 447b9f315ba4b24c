"""Versions of a model for serving: published from checkpoints, read by followers.

docs/publishing.md says what a destination holds and what a version promises.
"""
