"""The decoder in C++ for CPUs: quantised weights, and bits that do not depend on the batch."""
