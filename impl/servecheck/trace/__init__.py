"""Traces of runs: written as they happen, read strictly, replayed, shrunk, found.

    model ──▶ codec ──▶ observe ──▶ write, read ──▶ replay
                            fairness ──▶ lasso ──▶ shrink (simpler) ──▶ find

Import from the modules; this one imports nothing, so that a reader need not load a shrinker.
"""
