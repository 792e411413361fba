"""Executing accepted batches."""
