"""One step: admit, draft, choose lengths, score, judge, commit."""
