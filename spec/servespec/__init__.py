"""servespec: what a serving loop for language models must do."""
