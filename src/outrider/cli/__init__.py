"""Thin: parse, resolve, call, print."""
