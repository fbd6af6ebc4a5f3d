"""Which state is shown: one moment of a trace or of a recording, and what led to it.

Theory of operation. Both are run through the specification once more, up to the moment that is
asked for. A trace has a moment after each action, and its step is the number of the action. A
recording has two in each step, as its states do: `scheduled`, after the pass, and `updated`, after
its outcome. What *happened* is all that was done since the moment before.

What is shown is always the specification's state. Where a trace or a recording says otherwise at
this moment, `doubt` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

from attrs import Factory, define, field, frozen

from servecheck.recording import AbortLine, Arrival, Recording, WorkloadLine
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
from servecheck.trace.model import FIRST_LINE, Trace
from servecheck.trace.observe import digest_of, observe
from servecheck.view.errors import ViewError
from servespec.actions import Action, Submit
from servespec.errors import ActionDisabled
from servespec.events import Event
from servespec.machine import Machine, Transition
from servespec.plan import State

At = Literal["scheduled", "updated"]


@frozen
class Moment:
    """A state, and how it came about."""

    machine: Machine
    state: State
    before: State | None = None
    """At the moment before this one; None if nothing is to be said about changes."""
    actions: tuple[Action, ...] = ()
    """Since the moment before."""
    events: tuple[Event, ...] = ()
    """What the actions caused."""
    came: Mapping[str, int] = Factory(dict)
    """Place of each id among all requests of the run."""
    name: str = "state"
    """Of the run."""
    place: str = ""
    """Where in the run."""
    doubt: str = ""


def moment_of_trace(trace: Trace, step: int | None = None) -> Moment:
    """The state after action `step` of a trace, of its last one if none is named.

    Raises:
        ViewError: there is no such step, or the run cannot get there.
    """
    if not trace.lines:
        raise ViewError(f"{trace.path}: the trace has no action, so there is no step to show")
    wanted = _within(step, range(len(trace.lines)), str(trace.path))
    machine = trace.machine
    state = before = machine.initial()
    moved = Transition(state)
    for line in trace.lines[: wanted + 1]:
        before = state
        try:
            moved = machine.apply(state, line.action)
        except ActionDisabled as error:
            at = line.n + FIRST_LINE
            raise ViewError(
                f"{trace.path}:{at}: action {line.n} cannot be carried out ({error}); "
                f"show a step before {line.n}"
            ) from None
        state = moved.state
    line = trace.lines[wanted]
    agrees = digest_of(observe(state)) == line.digest
    return Moment(
        machine,
        state,
        before,
        (line.action,),
        moved.events,
        _came(trace.actions[: wanted + 1]),
        trace.path.stem,
        f"action {wanted} of 0 to {len(trace.lines) - 1}",
        "" if agrees else "the trace records another state here; this is the specification's",
    )


_BY_THEN = ("arrivals", "pass", "state scheduled")
"""Where a recording may differ when a step is scheduled; the rest of it comes later."""


class _There(Exception):
    """The step is past."""


@define
class _Watch:
    """Sees the transitions of a replay, up to the moment that is asked for."""

    start: int
    """Actions up to the moment before."""
    end: int
    """Actions up to this one."""
    whole: int
    """Actions up to the end of its step, when all of it has been compared."""
    before: State
    state: State = Factory(lambda self: self.before, takes_self=True)
    seen: int = 0
    actions: list[Action] = field(factory=list)
    """From the start of the run."""
    events: list[Event] = field(factory=list)

    def __call__(self, _before: State, action: Action, moved: Transition) -> None:
        if self.seen == self.whole:
            raise _There
        self.seen += 1
        if self.seen > self.end:
            return
        self.state = moved.state
        self.actions.append(action)
        if self.seen <= self.start:
            self.before = moved.state
        else:
            self.events += moved.events


def moment_of_recording(
    recording: Recording, step: int | None = None, at: At = "scheduled"
) -> Moment:
    """The state after the pass (`scheduled`) or the outcome (`updated`) of step `step`, of the last
    one if none is named.

    Raises:
        ViewError: there is no such step, or the specification does not get there.
        RecordingError: the recording cannot be replayed.
    """
    steps = [line.step for line in recording.steps]
    if not steps:
        raise ViewError(f"{recording.name}: it has no steps, so there is none to show")
    wanted = _within(step, steps, recording.name)
    late = at == "updated"
    before, scheduled, updated = islice(
        (0, *_moments(recording)), 2 * steps.index(wanted), 2 * steps.index(wanted) + 3
    )
    machine = Machine(config_of(recording.config), policy_of(recording.config))
    start, end = (scheduled, updated) if late else (before, scheduled)
    watch = _Watch(start, end, updated, machine.initial())
    differs = False
    try:
        found = replay(recording, watch).differences
        differs = any(d.step == wanted and (late or d.place in _BY_THEN) for d in found)
    except _There:
        pass
    if watch.seen < watch.end:
        raise ViewError(
            f"{recording.name}: step {wanted} is not reached, the recording and the specification "
            "part before it; `servecheck replay` tells where"
        )
    doubt = "the recording says otherwise here; `servecheck replay` tells in what"
    return Moment(
        machine,
        watch.state,
        watch.before,
        tuple(watch.actions[watch.start :]),
        tuple(watch.events),
        _came(watch.actions),
        recording.name,
        f"step {wanted} of {steps[0]} to {steps[-1]}, {at}",
        doubt if differs else "",
    )


def _moments(recording: Recording) -> Iterator[int]:
    """For each step how many actions have been carried out when it is scheduled, when updated."""
    due, done = list(reversed(recording.workload)), 0
    for line in recording.steps:
        during = 0
        while due and _step(due[-1]) <= line.step:
            item = due.pop()
            calls = len(item.ids) if isinstance(item, AbortLine) else 1
            if isinstance(item, AbortLine) and item.when == "during":
                during += calls
            else:
                done += calls
        done += line.pass_ is not None
        yield done
        done += during + (line.outcome is not None) + line.reset
        yield done


def _step(item: WorkloadLine) -> int:
    return item.arrival_step if isinstance(item, Arrival) else item.step


def _came(actions: Iterable[Action]) -> dict[str, int]:
    submits = (action.id for action in actions if isinstance(action, Submit))
    return {request: number for number, request in enumerate(submits)}


def _within(step: int | None, steps: Sequence[int], where: str) -> int:
    """The step, None being the last, if it is one of `steps`."""
    if step is None:
        return steps[-1]
    if step in steps:
        return step
    gap = ""
    if steps[0] < step < steps[-1]:
        below, above = max(s for s in steps if s < step), min(s for s in steps if s > step)
        gap = f", and none between {below} and {above}"
    raise ViewError(
        f"{where}: there is no step {step}; it has steps {steps[0]} to {steps[-1]}{gap}"
    )
