"""servecheck: tools that check a serving engine against its specification."""
