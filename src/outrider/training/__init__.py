"""Training of drafters: data on disk, packing, objectives, optimisers, the loop and its records."""
