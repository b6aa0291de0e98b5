"""What guesses. One file or folder per drafter; only the catalogue sees them all."""
