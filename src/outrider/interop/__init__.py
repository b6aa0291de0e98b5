"""Block drafters in the checkpoint schemas of other projects, to load there or to bring here."""
