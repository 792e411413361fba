"""Stage 3: answers become metrics with intervals."""
