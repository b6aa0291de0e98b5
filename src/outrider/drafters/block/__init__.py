"""Block drafters: DFlash and DSpark, one network for the trainer and for decoding."""
