"""Streams of requests to serve: made from a seed, or read from a trace of real ones."""
