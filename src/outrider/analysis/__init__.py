"""Reads what runs left behind, or drives the public API; never the engine's insides."""
