"""What is on disk about one run: events, journal, raw results, answers, audit."""
