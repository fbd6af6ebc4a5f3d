"""Specification and engine side by side, up to the first divergence."""
