"""Fuzzing: random programs of actions, every property asked after each of them."""
