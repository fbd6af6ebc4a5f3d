"""An entry along what was recorded: golden traces, and recordings of a real scheduler.

Theory of operation. Nothing decides here but what was written down. A trace is run by
`trace.replay`, a recording by `recording.replay`, with the engine in the specification's place; the
first that does not come out again finds the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

from servecheck.engines.whole import MakeWhole
from servecheck.recording.model import Recording
from servecheck.recording.read import read_recording
from servecheck.recording.replay import replay as recorded
from servecheck.trace.model import Trace
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.zoo.entry import Entry

FOLDERS = ("golden", "falls", "theory")
"""Of traces."""
SUFFIX = ".events.jsonl"


@frozen
class NotAgain:
    """Where something that was recorded did not come out again."""

    name: str
    """Of the file, without its ending."""
    at: int
    """Actions of a trace, or steps of a recording, that did."""


@cache
def traces(folder: Path) -> tuple[tuple[str, Trace], ...]:
    """The golden traces of a folder."""
    files = [file for part in FOLDERS for file in sorted((folder / part).glob("*.jsonl"))]
    return tuple((f"{file.parent.name}/{file.stem}", read_trace(file)) for file in files)


@cache
def recordings(folder: Path) -> tuple[tuple[str, Recording], ...]:
    """The recordings of real schedulers in a folder, the shortest first."""
    files = sorted(folder.glob(f"vllm-*/*{SUFFIX}"), key=lambda file: (file.stat().st_size, file))
    found = []
    for file in files:
        prefix = file.with_name(file.name.removesuffix(SUFFIX))
        recording = read_recording(prefix)
        if recording.steps and not recording.config.async_scheduling:
            found.append((f"{file.parent.name}/{prefix.name}", recording))
    return tuple(found)


def not_again(entry: Entry, folder: Path) -> NotAgain | None:
    """The first that does not come out again with this fault."""
    return next(_differing(entry.whole(), folder), None)


def _differing(make: MakeWhole, folder: Path) -> Iterator[NotAgain]:
    for name, trace in traces(folder):
        report = replay_trace(trace, watch=False, make=make)
        if not report.agrees:
            yield NotAgain(name, report.agreed)
    for name, recording in recordings(folder):
        try:
            found = recorded(recording, make=make)
        except Exception:
            # What an engine raises in the middle of a recording is not what was recorded.
            yield NotAgain(name, 0)
            continue
        if found.differences:
            yield NotAgain(name, found.agreed)
