"""The prompts that come with the command line."""

DEMO_PROMPT = """Correct the mistakes in this text and return the complete text:

The lighthouse keeper wakes before dawn. He climbs the stairs, opens the window and looks at the \
sea. When the fog is thick, he lights the lamp and rings the bell. When the fog is gone, he puts \
out the lamp and goes home. Every evening he writes into the log book: the wind, the waves, the \
ships that passed. He have done this for thirty years."""

# Repeats itself, so that drafters have something to propose.
WARM_UP_PROMPT = "one two three four one two three four one two three four one two three"
