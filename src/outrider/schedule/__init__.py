"""Who runs and how much to verify. Rule: no torch; numbers in, numbers out."""
