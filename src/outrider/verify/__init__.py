"""The accept rules and their proof as code."""
