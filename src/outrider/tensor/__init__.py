"""Records and axis names that cross a stage. Rule: no algorithms."""
