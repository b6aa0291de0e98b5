"""The model whose output is preserved, and one forward over a ragged window."""
