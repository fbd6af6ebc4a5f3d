"""The shortest program of each entry that is known: a folder of traces.

Theory of operation. Each seed comes to a program of its own, and some are shorter than others. The
folder has one trace an entry, which gives way to a shorter one, or to one as short of a smaller
seed; so what it has in the end does not depend on the order in which they came. A trace along
which the entry no longer parts from the specification gives way to any.

    Parted, seed ──keep──▶ FOLDER/ENTRY.jsonl
"""

from __future__ import annotations

from pathlib import Path

from servecheck.engines.protocol import EngineError
from servecheck.lockstep.subject import parted
from servecheck.trace.model import TraceError, Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.write import replace
from servecheck.zoo.entry import Entry
from servecheck.zoo.told import subject_of
from servespec.actions import Action
from servespec.errors import SpecError
from servespec.machine import Machine

Program = tuple[Machine, tuple[Action, ...]]
"""Up to where an engine parts from the specification."""


def keep(folder: Path, entry: Entry, program: Program, seed: int) -> None:
    """Keep a program, unless a shorter one is there.

    Raises:
        TraceError: it cannot be written.
    """
    path = folder / f"{entry.id}.jsonl"
    machine, actions = program
    known = _known(path, entry)
    if known is None or (len(actions), seed) < known:
        replace(path, machine, actions, Verdict("holds"), seed=seed)


def _known(path: Path, entry: Entry) -> tuple[int, int] | None:
    """Actions and seed of what is there, if it shows the fault."""
    try:
        trace = read_trace(path)
        found = parted(subject_of(entry), trace.machine, trace.actions)
    except (TraceError, SpecError, EngineError):
        return None
    return None if found is None else (len(found.actions), trace.header.seed or 0)
