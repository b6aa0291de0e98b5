"""Networks and how checkpoints become networks. Rule: no scheduling, no sampling."""
