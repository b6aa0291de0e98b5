"""Examines a target, a drafter and the machine: what is wrong, what it means, what to do."""
