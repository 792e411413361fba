"""Pure statistics: cells, resampling, intervals, marks."""
