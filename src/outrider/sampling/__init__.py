"""Warp, draw, noise. Rule: pure functions; randomness is an argument."""
