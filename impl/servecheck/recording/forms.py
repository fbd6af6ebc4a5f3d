"""What a recording would show of a state and of a plan: the forms in which both are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from servecheck.recording import model
from servecheck.recording.digest import short_hash
from servespec.plan import Planned, State
from servespec.request import Request

Lines = tuple[tuple[str, object], ...]
"""Named fields of one comparison, in the order in which they are shown."""

Status = Literal["WAITING", "RUNNING", "PREEMPTED"]


def fields_like(line: object, like: Lines) -> Lines:
    """The same fields of a recorded line."""
    return tuple((name, getattr(line, name)) for name, _ in like)


def new_entry(entry: Planned) -> model.NewEntry:
    """Somebody who is admitted."""
    return model.NewEntry(entry.id, entry.start, entry.table)


def cached_entry(entry: Planned) -> model.CachedEntry:
    """Somebody who goes on: the blocks are the new ones."""
    first = len(entry.table) - entry.new_blocks
    return model.CachedEntry(entry.id, entry.start, entry.table[first:] or None, resumed=False)


def state_form(state: State, step: int, at: str, preemptions: Mapping[str, int]) -> Lines:
    """A whole state; how often each live request was preempted is no part of it."""
    return (
        ("step", step),
        ("at", at),
        ("ref", tuple(b.ref_count for b in state.pool.blocks)),
        ("free", state.pool.free),
        (
            "cached",
            frozenset((short_hash(key), copies) for key, copies in state.pool.index.copies.items()),
        ),
        ("reqs", dict(_requests(state, preemptions))),
        ("running", tuple(r.id for r in state.running)),
        ("waiting", tuple(r.id for r in state.waiting)),
    )


def _requests(
    state: State, preemptions: Mapping[str, int]
) -> Iterator[tuple[str, model.RequestState]]:
    for r in state.running:
        yield r.id, _request(r, "RUNNING", preemptions)
    for r in state.waiting:
        yield r.id, _request(r, "PREEMPTED" if r.id in preemptions else "WAITING", preemptions)


def _request(
    request: Request, status: Status, preemptions: Mapping[str, int]
) -> model.RequestState:
    return model.RequestState(
        status=status,
        computed=request.computed,
        tokens=request.length,
        hashes=len(request.keys),
        table=request.table,
        published=request.published,
        preemptions=preemptions.get(request.id, 0),
        spec=request.drafts,
    )
