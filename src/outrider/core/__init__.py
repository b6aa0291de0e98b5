"""Plain records and counters. Rule: standard library only, no I/O, no clock."""
