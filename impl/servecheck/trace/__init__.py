"""Traces of runs: written as they happen, read strictly, replayed, shrunk, found."""
