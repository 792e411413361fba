"""Pure statistics: cells, resampling, intervals, marks, p-values."""
