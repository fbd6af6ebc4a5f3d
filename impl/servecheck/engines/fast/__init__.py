"""The fast engine: a mutable serving loop that refines the specification."""

from servecheck.engines.fast.abstraction import abstraction, from_state
from servecheck.engines.fast.engine import FastEngine

__all__ = ["FastEngine", "abstraction", "from_state"]
