"""HTTP: which call arrives, which fault affects it, which dialect answers it."""
