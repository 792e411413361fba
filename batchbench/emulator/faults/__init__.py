"""The faults that the emulator can inject: `catalogue` lists them, `rules` selects them, the others apply them."""
