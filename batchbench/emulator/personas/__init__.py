"""The models that the emulator pretends to be: `respond` finds them, one module per kind of prompt answers it."""
