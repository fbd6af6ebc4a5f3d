"""The shortest program of each entry that is known: a folder of traces.

Theory of operation. Each seed comes to a program of its own, and some are shorter than others. The
folder has one trace an entry, which gives way to a shorter one, or to one as short of a smaller
seed; so what it has in the end does not depend on the order in which they came. Who looks and
writes has the folder for itself, so runs may share it. A trace along which the entry no longer
parts from the specification gives way to any.

    Parted, seed ──keep──▶ FOLDER/ENTRY.jsonl
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, flock
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
    path = place(folder, entry.id)
    machine, actions = program
    with _alone(folder):
        known = _known(path, entry)
        if known is None or (len(actions), seed) < known:
            replace(path, machine, actions, Verdict("holds"), seed=seed)


def place(folder: Path, entry_id: str) -> Path:
    """Where the program of an entry is kept."""
    return folder / f"{entry_id}.jsonl"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other run looks into the folder meanwhile, if it can be locked."""
    with ExitStack() as opened:
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, lock)
            flock(lock, LOCK_EX)
        yield


def _known(path: Path, entry: Entry) -> tuple[int, int] | None:
    """Actions and seed of what is there, if it shows the fault."""
    if not path.is_file():  # whoever opens a named pipe waits for ever
        return None
    try:
        trace = read_trace(path)
        found = parted(subject_of(entry), trace.machine, trace.actions)
    except (TraceError, SpecError, EngineError):
        return None
    return None if found is None else (len(found.actions), trace.header.seed or 0)
