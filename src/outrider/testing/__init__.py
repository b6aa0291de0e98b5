"""Fakes that ship: table targets, scripted drafters, tiny checkpoints."""
