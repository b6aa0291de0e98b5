"""Data, objectives and loops that make drafters out of a target."""
