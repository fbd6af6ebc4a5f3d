"""The zoo: faults that real engines had, each planted in the fast engine; and who finds them.

Theory of operation. Each module of this folder named as a subject (`pool`, `sharing`, …) enters
faults (`entry.fault`); `reports.toml` says which public reports each stands for, and of all others
why none does. `run` sets every check on every entry: comparison with the specification, the
properties asked of the engine alone, recordings, exhaustive search.
"""

from servecheck.zoo import (
    chunking,
    demand,
    events,
    eviction,
    leaving,
    namespaces,
    pool,
    preemption,
    scheduling,
    sharing,
    speculation,
)
from servecheck.zoo.entry import ENTRIES, Entry

SUBJECTS = (
    pool,
    eviction,
    sharing,
    demand,
    scheduling,
    chunking,
    preemption,
    leaving,
    namespaces,
    speculation,
    events,
)
"""The modules that enter faults."""

__all__ = ["ENTRIES", "SUBJECTS", "Entry"]
