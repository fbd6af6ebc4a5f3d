"""Streams: requests that arrive step by step, run through a machine, and what came of it.

Theory of operation. A `Stream` says at which step each request arrives. A `Course` is a machine
that has been run for some steps; one step is what arrives, one `Schedule` and one `Complete`. A
course is a value, so streams that begin alike share their beginnings, and `Steps` remembers the
steps that were made from a state. What the model says is an `Answers`: what a plan in flight
brings. All that theorems and comparisons speak of is a fold over the events, one tuple a step:

    Stream ──run(machine)──▶ Course ──▶ steps ──▶ starts, ends, tally

Step k is the k-th pass, from 0. A request that starts in step s and ends in step e has
*start* s and *end* e + 1: the moments at which these steps begin and are over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, evolve, field, frozen

from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.chain import Token
from servespec.errors import SpecError
from servespec.events import (
    Admitted,
    BlockRemoved,
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
)
from servespec.machine import Machine
from servespec.plan import State

Events = tuple[Event, ...]
Answers = Callable[[Machine, State], Complete]
"""What the oldest plan in flight brings."""

ANSWER: Token = 1_000
"""What the model says unless it is asked for more. No prompt of a small scope holds it."""
LIMIT = 1_000
"""Steps after which a run is given up, unless another number is asked for."""


@frozen
class Arrival:
    step: int
    """The step before whose pass it arrives, from 0."""
    submit: Submit


@frozen
class Stream:
    """Requests in order of arrival.

    Raises:
        StreamError: a step is negative or before the one above it, or an id comes twice.
    """

    arrivals: tuple[Arrival, ...]

    def __attrs_post_init__(self) -> None:
        last, ids = 0, set[str]()
        for arrival in self.arrivals:
            if arrival.step < last:
                raise StreamError(
                    f"request {arrival.submit.id!r}",
                    f"arrives at step {arrival.step}, after one of step {last}",
                    "sort the stream by steps, from 0",
                )
            if arrival.submit.id in ids:
                raise StreamError(
                    f"request {arrival.submit.id!r}", "comes twice", "give each an id of its own"
                )
            last = arrival.step
            ids.add(arrival.submit.id)

    def due(self, step: int) -> tuple[Submit, ...]:
        """What arrives at a step."""
        return tuple(a.submit for a in self.arrivals if a.step == step)

    @property
    def last(self) -> int:
        """The step of the last arrival; -1 if there is none."""
        return self.arrivals[-1].step if self.arrivals else -1


class StreamError(SpecError):
    """A stream that cannot be; `where` names the request."""


def always(token: Token) -> Answers:
    """A model that says the same to everything, and proposes no drafts."""

    def answers(machine: Machine, state: State) -> Complete:
        entries = state.in_flight[0].entries
        said = (Output(e.id, (token,)) for e in entries if e.yields and not e.cancelled)
        return Complete(tuple(said))

    return answers


@define
class Steps:
    """Makes steps of a machine, and remembers them: many streams pass through the same state."""

    machine: Machine
    answers: Answers = field(factory=lambda: always(ANSWER))
    _known: dict[tuple[State, tuple[Submit, ...]], tuple[State, Events]] = field(
        init=False, factory=dict
    )

    def step(self, state: State, due: tuple[Submit, ...] = ()) -> tuple[State, Events]:
        """What arrives, a pass, and its outcome."""
        found = self._known.get((state, due))
        if found is None:
            found = self._known[state, due] = self._made(state, due)
        return found

    def _made(self, state: State, due: tuple[Submit, ...]) -> tuple[State, Events]:
        events: Events = ()
        actions: tuple[Action, ...] = (*due, Schedule())
        for action in actions:
            moved = self.machine.apply(state, action)
            state, events = moved.state, events + moved.events
        moved = self.machine.apply(state, self.answers(self.machine, state))
        return moved.state, events + moved.events


@frozen
class Course:
    """A machine after some steps."""

    making: Steps = field(eq=False, repr=False)
    state: State
    steps: tuple[Events, ...] = ()
    """What happened in each of them."""
    idle: bool = False
    """The last step changed nothing, though nothing arrived: without arrivals none will."""

    def step(self, due: tuple[Submit, ...] = ()) -> Course:
        state, events = self.making.step(self.state, due)
        idle = not due and state == self.state
        return evolve(self, state=state, steps=(*self.steps, events), idle=idle)

    def through(self, stream: Stream, limit: int = LIMIT) -> Course:
        """After all of a stream, whose step 0 is the next one."""
        course = self
        for step in range(min(stream.last + 1, limit)):
            course = course.step(stream.due(step))
        return course.drained(limit)

    def drained(self, limit: int = LIMIT) -> Course:
        """After more steps, until nobody is left, nothing moves, or so many steps were made."""
        course = self
        while course.state.live and not course.idle and len(course.steps) < limit:
            course = course.step()
        return course


def begin(machine: Machine, answers: Answers | None = None) -> Course:
    making = Steps(machine) if answers is None else Steps(machine, answers)
    return Course(making, machine.initial())


def run(
    machine: Machine, stream: Stream, answers: Answers | None = None, limit: int = LIMIT
) -> Course:
    """The stream from its first step until all have left, nothing moves, or the limit."""
    return begin(machine, answers).through(stream, limit)


# --- folds -----------------------------------------------------------------------------------


def starts(steps: Sequence[Events]) -> dict[str, int]:
    """When each request was first admitted."""
    found: dict[str, int] = {}
    for at, events in enumerate(steps):
        for event in events:
            if isinstance(event, Admitted):
                found.setdefault(event.id, at)
    return found


def ends(steps: Sequence[Events]) -> dict[str, int]:
    """When each request was finished: the step is over then. A refused one never is."""
    return {
        event.id: at + 1
        for at, events in enumerate(steps)
        for event in events
        if isinstance(event, Finished)
    }


def computed(events: Events) -> dict[str, int]:
    """Tokens that a step computes of each request: those scheduled, unless the same pass sent
    their request back (rule 20)."""
    found: dict[str, int] = {}
    for event in events:
        if isinstance(event, Scheduled):
            found[event.id] = event.tokens
        elif isinstance(event, Preempted):
            found.pop(event.id, None)
    return found


def duration(steps: Sequence[Events], a_step: int = 1, a_token: int = 1) -> int:
    """Time that the steps take, if each costs so much, and each token that it computes so much
    besides: the weights are read once a step, whatever is computed with them."""
    return sum(a_step + a_token * sum(computed(events).values()) for events in steps)


@frozen
class Tally:
    """What a run came to, counted over all its steps."""

    steps: int = 0
    admissions: int = 0
    hit_tokens: int = 0
    computed_tokens: int = 0
    delivered_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0
    refusals: int = 0


def tally(steps: Sequence[Events]) -> Tally:
    events = [event for step in steps for event in step]

    def of(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in events)

    return Tally(
        steps=len(steps),
        admissions=of(Admitted),
        hit_tokens=sum(e.hit_tokens for e in events if isinstance(e, Admitted)),
        computed_tokens=sum(sum(computed(step).values()) for step in steps),
        delivered_tokens=sum(len(e.tokens) for e in events if isinstance(e, Delivered)),
        evictions=of(BlockRemoved),
        preemptions=of(Preempted),
        refusals=of(Refused),
    )
