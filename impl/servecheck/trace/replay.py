"""Runs the specification, or an engine, along a trace, and compares all that the trace shows.

Theory of operation. The actions are input; events, digests and snapshots are output and must come
out again. The first line on which something does not is told. A digest says that a state differs
and not in what: the snapshot of the same line does, or else the next one, which the run goes on to
reach. The run always goes on as far as the actions are enabled, so that the verdict is compared
whether or not the lines are. An engine that shows its whole state (`engines.whole`) may run in the
place of the specification: then nobody but the trace says what is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, field, fields_dict, frozen

from servecheck.engines.whole import MakeWhole, SpecWhole
from servecheck.marks import Mark, marks_of
from servecheck.trace.lasso import WATCHED
from servecheck.trace.model import FIRST_LINE, Line, Observation, Trace, Verdict
from servecheck.trace.observe import digest_of, observe, traced
from servecheck.watch import Fallen, Watch
from servespec.errors import ActionDisabled
from servespec.machine import Transition
from servespec.properties import step_of


@frozen
class Difference:
    """One thing on one line that does not come out again."""

    line: int
    """In the file, from 1."""
    n: int
    """The action."""
    field: str
    recorded: object
    specified: object
    """Or seen, of an engine that runs in the place of the specification."""


@frozen
class FellAt:
    """A property that fell, and after which action."""

    n: int
    fallen: Fallen


@frozen
class TraceReport:
    """How far a trace and the specification agree."""

    actions: int
    """Of the trace."""
    done: int
    """Actions that were carried out."""
    agreed: int
    """Actions up to the first line that differs."""
    differences: tuple[Difference, ...]
    """Those of the first line that differs; where it has no snapshot, also those of the next one
    that the run reaches."""
    fallen: tuple[FellAt, ...]
    checked: Counter[str]
    """How often the antecedent of each property was true."""
    marks: Counter[Mark]
    """Situations that the trace has been in; none if nobody watched."""
    recorded: Verdict | None
    reproduced: bool | None
    """Whether the recorded verdict came out again; None if there is none, or it says nothing, or
    nobody watched."""

    @property
    def agrees(self) -> bool:
        return not self.differences


def replay_trace(trace: Trace, watch: bool = True, make: MakeWhole = SpecWhole) -> TraceReport:
    """Run the specification, or what `make` makes, along a trace. `watch` asks every property on
    the way; the states of an engine have no content, so ask none of an engine."""
    serving = make(trace.machine)
    watcher = Watch(trace.machine, serving.state, WATCHED.values() if watch else ())
    compared = _Comparison()
    fallen: list[FellAt] = []
    done, marks = 0, Counter[Mark]()
    for at, line in enumerate(trace.lines, start=FIRST_LINE):
        before = serving.state
        try:
            events = serving.apply(line.action)
        except ActionDisabled as error:
            compared.stop(at, line, str(error))
            break
        except Exception as error:
            if make is SpecWhole:
                raise
            # An engine that raises does not do what was recorded.
            compared.stop(at, line, f"{type(error).__name__}: {error}")
            break
        moved = Transition(serving.state, events)
        compared.see(at, line, moved)
        step = step_of(trace.machine, before, line.action, moved)
        fallen += (FellAt(line.n, fall) for fall in watcher.see_step(step))
        if watch:
            marks.update(marks_of(step))
        done += 1
    differences = tuple(compared.differences)
    return TraceReport(
        len(trace.lines),
        done,
        differences[0].n if differences else done,
        differences,
        tuple(fallen),
        watcher.checked,
        marks,
        trace.verdict,
        _reproduced(trace, fallen, done) if watch else None,
    )


@define
class _Comparison:
    """What differs so far."""

    differences: list[Difference] = field(factory=list)
    seeking: bool = False
    """A digest differs, and no snapshot has told yet in what."""

    def see(self, at: int, line: Line, moved: Transition) -> None:
        """Compare one line with what came of its action."""
        seen = observe(moved.state)
        if self.seeking and line.state is not None:
            self.differences += _in_state(at, line, seen)
            self.seeking = False
        if self.differences:
            return
        told, digest = tuple(map(traced, moved.events)), digest_of(seen)
        if told != line.events:
            self.differences.append(Difference(at, line.n, "events", line.events, told))
        if digest != line.digest:
            self.differences.append(Difference(at, line.n, "digest", line.digest, digest))
            self.seeking = line.state is None
        self.differences += _in_state(at, line, seen)

    def stop(self, at: int, line: Line, why: str) -> None:
        """The run ends here: what runs does not offer the recorded action, or raises."""
        if not self.differences:
            self.differences.append(Difference(at, line.n, "action", line.action, why))


def _in_state(at: int, line: Line, seen: Observation) -> Iterator[Difference]:
    """Where the snapshot of a line, if it has one, is not what is seen."""
    if line.state is not None:
        for name in fields_dict(Observation):
            recorded: object = getattr(line.state, name)
            specified: object = getattr(seen, name)
            if recorded != specified:
                yield Difference(at, line.n, f"state.{name}", recorded, specified)


def _reproduced(trace: Trace, fallen: list[FellAt], done: int) -> bool | None:
    """Whether what was said of the run is true of it once more."""
    match trace.verdict:
        case Verdict("falls", str(name)) if name in WATCHED:
            return any(fell.fallen.property.id == name for fell in fallen)
        case Verdict("holds"):
            return done == len(trace.lines) and all(fell.fallen.known for fell in fallen)
    return None
