"""servecheck: tools that check a serving engine against its specification."""

__version__ = "0.1.0"
