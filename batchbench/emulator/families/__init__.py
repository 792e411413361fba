"""Real models that the emulator plays: which parameters each accepts, and how much it thinks."""
