"""Breadth-first search of a transition system: all of it, or an honest word about how much.

Theory of operation. Level by level, every key is restored to its representative, every enabled
action is applied, every new key is kept with the one it came from. A level is cut into batches, and
batches are expanded in this process or in several; they are merged in order, so that the result
does not depend on how many there are. The first fall of each property is on a shortest way, since
a level is searched to its end before the next one.

    level ──batches──▶ expand: restore, enabled, apply, canonical, see ──▶ merge ──▶ next level

A search that runs out of states, depth, seconds or memory says so: then nothing is known about
the rest (`Ended.STATES` … are *undetermined*), and a property that did not fall does not hold.
"""

from __future__ import annotations

import resource
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from multiprocessing import get_context
from typing import Generic, Protocol, TypeVar, cast

from attrs import define, field, frozen

from servecheck.explore.system import Moved, System
from servecheck.processes import deaf, unheard
from servespec.errors import SpecError

S = TypeVar("S", bound=Hashable)
A = TypeVar("A")
S_contra = TypeVar("S_contra", contravariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
K = TypeVar("K", bound=Hashable)

REFUSED = "APPLY-1"
"""What falls where a system offers an action and then refuses it: it goes nowhere from there."""

BATCH = 512
"""Keys that are expanded at a time."""


class Ended(Enum):
    """How a search ended; all but the first leave its question open."""

    EXHAUSTED = "exhausted"
    FELL = "stopped at the first fall"
    STATES = "stopped at the limit of states"
    DEPTH = "stopped at the limit of depth"
    SECONDS = "stopped at the limit of seconds"
    MEMORY = "stopped at the limit of memory"
    INTERRUPTED = "interrupted"


@frozen
class Limits:
    """Where a search gives up; None is no limit."""

    states: int | None = None
    depth: int | None = None
    seconds: float | None = None
    megabytes: int | None = None
    """Most memory of this process, resident."""


NO_LIMITS = Limits()


@frozen
class Seen:
    """What one transition showed."""

    falls: tuple[tuple[str, str], ...] = ()
    """Property, and what is wrong."""
    counts: tuple[str, ...] = ()
    """What to count: antecedents, marks."""


class Eye(Protocol[S_contra, A_contra]):
    """Looks at every state once, as its representative, and at every transition."""

    def state(self, state: S_contra) -> Seen: ...

    def step(self, before: S_contra, action: A_contra, moved: Moved[object]) -> Seen: ...


@frozen
class Fallen:
    """The first fall of a property that a search met."""

    name: str
    what: str
    source: int
    """Number of the state that fell, or in which the action was taken."""
    ordinal: int | None = None
    """Which of its enabled actions; None: it is the state that fell."""


@frozen
class Progress:
    """A search under way."""

    states: int
    transitions: int
    depth: int
    frontier: int
    seconds: float


@define
class Graph(Generic[K]):
    """Every state that was found and, if asked for, every transition.

    States are numbered in the order in which they were found; `keys[i]` is the i-th.
    """

    keys: list[K] = field(factory=list)
    parents: array[int] = field(factory=lambda: array("L"))
    ordinals: array[int] = field(factory=lambda: array("L"))
    """Which enabled action of the parent led here first."""
    depths: list[int] = field(factory=list)
    """Number of the first state of each level."""
    edges: list[array[int]] | None = None
    """Of each expanded state the numbers of its successors, in the order of its actions."""

    def way(self, number: int) -> tuple[int, ...]:
        """The numbers of the states on the shortest way to this one, from the initial state."""
        back = [number]
        while back[-1] != 0:
            back.append(self.parents[back[-1]])
        return tuple(reversed(back))


@frozen
class Found(Generic[K]):
    """What a search has found."""

    graph: Graph[K]
    transitions: int
    """Enabled actions of all expanded states; those that lead to one state count each."""
    depth: int
    ended: Ended
    falls: tuple[Fallen, ...]
    counts: Counter[str]
    seconds: float

    @property
    def states(self) -> int:
        return len(self.graph.keys)

    @property
    def exhausted(self) -> bool:
        return self.ended is Ended.EXHAUSTED


# --- expanding -----------------------------------------------------------------------------


@frozen
class _Expanded(Generic[K]):
    successors: list[list[K]]
    """Of each key of the batch, one for each enabled action."""
    falls: list[Fallen]
    counts: Counter[str]


def _expand(
    system: System[S, A, K], eye: Eye[S, A] | None, batch: Sequence[K], first: int
) -> _Expanded[K]:
    successors: list[list[K]] = []
    falls: dict[str, Fallen] = {}
    counts: Counter[str] = Counter()

    def note(seen: Seen, number: int, ordinal: int | None = None) -> None:
        counts.update(seen.counts)
        for name, what in seen.falls:
            falls.setdefault(name, Fallen(name, what, number, ordinal))

    for number, key in enumerate(batch, first):
        state = system.restore(key)
        if eye is not None:
            note(eye.state(state), number)
        mine: list[K] = []
        for ordinal, action in enumerate(system.enabled(state)):
            try:
                moved = system.apply(state, action)
            except SpecError as error:
                note(Seen(((REFUSED, str(error)),)), number, ordinal)
                mine.append(key)
                continue
            mine.append(system.canonical(moved.state))
            if eye is not None:
                note(eye.step(state, action, moved), number, ordinal)
        successors.append(mine)
    return _Expanded(successors, list(falls.values()), counts)


_work: list[Callable[[Sequence[Hashable], int], object]] = []
"""In a worker process: how it expands. It is set before the process is forked, so nothing but
keys travels."""


def _expand_here(batch: Sequence[Hashable], first: int) -> object:
    return _work[-1](batch, first)


# --- the search ----------------------------------------------------------------------------


def search(
    system: System[S, A, K],
    eye: Eye[S, A] | None = None,
    *,
    limits: Limits = NO_LIMITS,
    stops: Callable[[str], bool] | None = None,
    edges: bool = False,
    processes: int = 1,
    report: Callable[[Progress], None] | None = None,
) -> Found[K]:
    """Search everything that can be reached, or as much as the limits allow.

    `eye` sees every state and every transition. A fall for whose name `stops` is true ends the
    search after its level. Ctrl-C ends the search with what is known so far.
    """
    run = _Run(system, limits, stops, report, edges)
    with _expander(system, eye, processes) as expand:
        return run.whole(expand)


Expander = Callable[[Sequence[Sequence[K]], int], Iterator[_Expanded[K]]]


@contextmanager
def _expander(
    system: System[S, A, K], eye: Eye[S, A] | None, processes: int
) -> Iterator[Expander[K]]:
    """Expands batches, the first of which begins with the state of a number, in order."""

    def here(batches: Sequence[Sequence[K]], first: int) -> Iterator[_Expanded[K]]:
        for batch in batches:
            yield _expand(system, eye, batch, first)
            first += len(batch)

    if processes < 2 or sys.platform == "win32":
        yield here
        return
    _work.append(lambda batch, first: _expand(system, eye, cast(Sequence[K], batch), first))
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), deaf) as pool:
            yield lambda batches, first: _everywhere(pool, here, batches, first)
    finally:
        _work.pop()


def _everywhere(
    pool: Executor, here: Expander[K], batches: Sequence[Sequence[K]], first: int
) -> Iterator[_Expanded[K]]:
    if len(batches) == 1:  # not worth the way
        yield from here(batches, first)
        return
    starts = [first + sum(map(len, batches[:i])) for i in range(len(batches))]
    with unheard():
        found = pool.map(_expand_here, batches, starts)
    yield from cast(Iterator[_Expanded[K]], found)


@define
class _Run(Generic[S, A, K]):
    """A search under way."""

    system: System[S, A, K]
    limits: Limits
    stops: Callable[[str], bool] | None
    report: Callable[[Progress], None] | None
    edges: bool
    numbers: dict[K, int] = field(factory=dict)
    graph: Graph[K] = field(factory=Graph)
    transitions: int = 0
    depth: int = 0
    falls: dict[str, Fallen] = field(factory=dict)
    counts: Counter[str] = field(factory=Counter)
    began: float = field(factory=time.monotonic)

    def whole(self, expand: Expander[K]) -> Found[K]:
        if self.edges:
            self.graph.edges = []
        self._reach(self.system.canonical(self.system.initial()), 0, 0)
        try:
            ended = self._levels(expand)
        except KeyboardInterrupt:
            ended = Ended.INTERRUPTED
        seconds = time.monotonic() - self.began
        falls = tuple(self.falls.values())
        return Found(self.graph, self.transitions, self.depth, ended, falls, self.counts, seconds)

    def _levels(self, expand: Expander[K]) -> Ended:
        first = 0
        while first < len(self.graph.keys):
            self.graph.depths.append(first)
            self.depth = len(self.graph.depths) - 1
            if self.limits.depth is not None and self.depth >= self.limits.depth:
                return Ended.DEPTH
            last = len(self.graph.keys)
            for start in range(first, last, BATCH * 8):
                keys = self.graph.keys[start : min(start + BATCH * 8, last)]
                batches = [keys[i : i + BATCH] for i in range(0, len(keys), BATCH)]
                if limit := self._expanded(expand(batches, start), start, last):
                    return limit
            if self.stops is not None and any(map(self.stops, self.falls)):
                return Ended.FELL
            first = last
        return Ended.EXHAUSTED

    def _expanded(self, parts: Iterable[_Expanded[K]], first: int, last: int) -> Ended | None:
        """Merge what was expanded; the limit that is reached, if one is."""
        number = first
        for part in parts:
            for successors in part.successors:
                self.transitions += len(successors)
                reached = [self._reach(key, number, i) for i, key in enumerate(successors)]
                if self.graph.edges is not None:
                    self.graph.edges.append(array("L", reached))
                number += 1
            self.counts.update(part.counts)
            for fallen in part.falls:
                self.falls.setdefault(fallen.name, fallen)
            seconds = time.monotonic() - self.began
            if self.report is not None:
                frontier = last - number + len(self.graph.keys) - last
                self.report(
                    Progress(len(self.graph.keys), self.transitions, self.depth, frontier, seconds)
                )
            if limit := self._limit(seconds):
                return limit
        return None

    def _reach(self, key: K, parent: int, ordinal: int) -> int:
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.graph.keys)
            self.graph.keys.append(key)
            self.graph.parents.append(parent)
            self.graph.ordinals.append(ordinal)
        return number

    def _limit(self, seconds: float) -> Ended | None:
        limits = self.limits
        if limits.states is not None and len(self.graph.keys) >= limits.states:
            return Ended.STATES
        if limits.seconds is not None and seconds >= limits.seconds:
            return Ended.SECONDS
        if limits.megabytes is not None and megabytes() >= limits.megabytes:
            return Ended.MEMORY
        return None


def megabytes() -> float:
    """Most memory that this process has had resident."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# --- a way, in concrete states -------------------------------------------------------------


def walk(system: System[S, A, K], keys: Sequence[K]) -> Iterator[tuple[A, S]]:
    """The way through these keys as actions that follow each other from the initial state: in a
    key, each representative has names of its own; here one name stays one name."""
    state = system.initial()
    for key in islice(keys, 1, None):
        for action in system.enabled(state):
            after = system.apply(state, action).state
            if system.canonical(after) == key:
                state = after
                yield action, after
                break
        else:
            raise LookupError(f"no enabled action leads on to {key!r}: the symmetry is not sound")
