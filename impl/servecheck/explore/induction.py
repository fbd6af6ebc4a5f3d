"""Inductiveness: from *every* state in which properties hold, reachable or not, they go on holding.

Theory of operation. A search shows that properties hold in what can be reached; it does not say
why. They hold because they are *inductive*: whoever assumes them before an action has them after
it, whatever came before. So all states of a small universe that satisfy a conjunction are
enumerated, every enabled action is done in each, and what does not hold any more is counted, with
a first example. One property can be left out of what is assumed: what falls then needs it.

    states(given) ──filter: given holds──▶ apply every action ──▶ does given hold? which falls?

The universes of states are in `allcaches` and `allserving`: they are built part by part, so that
what is assumed cuts early, and then filtered by the very functions that say what is assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from servecheck.explore.search import NO_LIMITS, Ended, Limits
from servespec.errors import SpecError

S = TypeVar("S", bound=Hashable)

RAISES = "raises"
"""What falls where an action that looks enabled cannot be done."""

Holds = Callable[[S], str | None]
"""What is wrong with a state; None if nothing is."""


class Universe(Protocol[S]):
    """All states of a small universe, and what can happen in them."""

    @property
    def properties(self) -> Mapping[str, Holds[S]]:
        """What can be assumed, by name."""
        ...

    def states(self, given: frozenset[str]) -> Iterable[S]:
        """At least every state in which all that is given holds, each once up to the names of
        blocks."""
        ...

    def steps(self, state: S) -> Iterable[tuple[object, Callable[[], Iterable[S]]]]:
        """What can happen: what it is, and how to do it; the states that it goes through."""
        ...


@frozen
class Broken(Generic[S]):
    """A property that held, and does not any more."""

    name: str
    what: str
    before: S
    action: object


@frozen
class Inductive(Generic[S]):
    """Whether a conjunction is inductive in a universe."""

    given: tuple[str, ...]
    states: int
    """That satisfy it."""
    transitions: int
    ended: Ended
    broken: tuple[Broken[S], ...]
    """What it does not preserve, each with the first example."""
    seconds: float

    @property
    def holds(self) -> bool | None:
        """Whether it is inductive; None: not all of the universe was looked at."""
        if self.broken:
            return False
        return True if self.ended is Ended.EXHAUSTED else None


def inductive(
    universe: Universe[S],
    without: Iterable[str] = (),
    *,
    limits: Limits = NO_LIMITS,
    enough: bool = False,
) -> Inductive[S]:
    """Is the conjunction of all properties of the universe, but for some, inductive?

    Args:
        enough: stop when every property that is assumed has fallen.
    """
    began = time.monotonic()
    out = frozenset(without)
    given = tuple(name for name in universe.properties if name not in out)
    asked = [(name, universe.properties[name]) for name in given]
    broken: dict[str, Broken[S]] = {}
    states = transitions = 0
    ended = Ended.EXHAUSTED
    try:
        for state in universe.states(frozenset(given)):
            if any(holds(state) is not None for _, holds in asked):
                continue
            states += 1
            for action, done in universe.steps(state):
                transitions += 1
                for name, what in _fallen(asked, done):
                    broken.setdefault(name, Broken(name, what, state, action))
            if ended_ := _ended(limits, states, began, enough and len(broken) > len(given)):
                ended = ended_
                break
    except KeyboardInterrupt:
        ended = Ended.INTERRUPTED
    found = tuple(broken[name] for name in (*given, RAISES) if name in broken)
    return Inductive(given, states, transitions, ended, found, time.monotonic() - began)


def _fallen(
    asked: Iterable[tuple[str, Holds[S]]], done: Callable[[], Iterable[S]]
) -> Iterable[tuple[str, str]]:
    found: dict[str, str] = {}
    try:
        for after in done():
            for name, holds in asked:
                what = holds(after) if name not in found else None
                if what is not None:
                    found[name] = what
    except (SpecError, LookupError, ValueError) as error:
        found[RAISES] = f"{type(error).__name__}: {error}"
    return found.items()


def _ended(limits: Limits, states: int, began: float, enough: bool) -> Ended | None:
    if enough:
        return Ended.FELL
    if limits.states is not None and states >= limits.states:
        return Ended.STATES
    if limits.seconds is not None and time.monotonic() - began >= limits.seconds:
        return Ended.SECONDS
    return None


def needs(universe: Universe[S], *, limits: Limits = NO_LIMITS) -> dict[str | None, Inductive[S]]:
    """The table: what falls if everything is assumed (None), and if one property is not."""
    rows: list[str | None] = [None, *universe.properties]
    return {
        name: inductive(universe, () if name is None else (name,), limits=limits) for name in rows
    }
