"""Load on any OpenAI-compatible server over the network. Knows no engine and no web framework."""
