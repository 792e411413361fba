"""Rebuild a damaged run from what is left of its files; see `batchbench salvage`."""
