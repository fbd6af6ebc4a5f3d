"""Exhaustive search: every state of a small scope, every transition of it."""
