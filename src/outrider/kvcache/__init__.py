"""Paged key/value memory: who owns which block, and where it lies."""
