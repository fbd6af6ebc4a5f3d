"""Engines: what can be checked against the specification, and what they can show of themselves."""
