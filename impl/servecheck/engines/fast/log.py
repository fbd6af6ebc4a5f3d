"""What happens in the fast engine, written down in passing; made into events when somebody asks.

Theory of operation. An entry of the log is a plain tuple, its kind first. Blocks that are published
together are one entry, first block first; so are those evicted together, last block first. A name
is given as (text, place), which stays true whatever becomes of the block; the specification's name
for it is found when the entry is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servecheck.engines.fast.text import Text
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)

Entry = tuple[object, ...]

STORED, REMOVED, CLEARED = "stored", "removed", "cleared"
ADMITTED, SCHEDULED, SKIPPED, PREEMPTED = "admitted", "scheduled", "skipped", "preempted"
SUBMITTED, DELIVERED, FINISHED, REFUSED = "submitted", "delivered", "finished", "refused"

_EVENTS = {
    ADMITTED: Admitted,
    SCHEDULED: Scheduled,
    SKIPPED: Skipped,
    PREEMPTED: Preempted,
    SUBMITTED: Submitted,
    DELIVERED: Delivered,
    FINISHED: Finished,
    REFUSED: Refused,
    CLEARED: CacheCleared,
}
"""Entries that hold what their event does."""


def events(log: Iterable[Entry]) -> Iterator[Event]:
    """What a log says, as the specification says it."""
    for entry in log:
        match entry:
            case (str(kind), tuple(blocks), Text() as text, int(place)) if kind == STORED:
                for at, block in enumerate(blocks, place):
                    key = text.chain(at)
                    yield BlockStored(block, key, key.parent)
            case (str(kind), list(blocks), Text() as text, int(place)) if kind == REMOVED:
                for back, block in enumerate(blocks):
                    yield BlockRemoved(block, text.chain(place - back))
            case (str(kind), *values) if kind in _EVENTS:
                made: Event = _EVENTS[kind](*values)
                yield made
            case _:
                raise LookupError(f"the log holds {entry!r}")


def evicted(log: Iterable[Entry]) -> int:
    """Blocks that lost their names, says a log."""
    return sum(len(e[1]) for e in log if e[0] is REMOVED and isinstance(e[1], list))
