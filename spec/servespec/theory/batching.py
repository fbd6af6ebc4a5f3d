"""Batching: continuous against static, in general and on every stream of a small scope.

Theory of operation. Two machines that differ in batching alone get one stream. `too_late` compares
what came of it; ORD-1 says that it finds nothing, if steps cost the same whatever is in them, the
slots are as many, serving is first come first served, and neither memory nor the token budget ever
stands in the way. `ORD1` is the pair of machines for which that is so. `courses` runs every stream
of a `Scope` through any such pair; streams that begin alike share their beginnings.

Without one of the conditions the theorem is false. What goes wrong then, and the smallest stream on
which it does, is found by `servespec.theory.smallest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attrs import evolve, frozen

from servespec.actions import Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, STATIC
from servespec.theory.register import Kind, theorem
from servespec.theory.stream import Arrival, Course, Stream, begin, ends, starts


@frozen
class Twins:
    """Two machines that are given the same stream."""

    first: Machine
    """Of which something is claimed, such as continuous batching."""
    second: Machine
    """With which it is compared."""


def unhindered(slots: int, longest: int) -> Twins:
    """ORD-1's machines: `slots` requests of at most `longest` tokens, prompt and output, are
    computed in one step, and each has a block that holds all of it."""
    config = Config(
        num_blocks=slots,
        block_size=longest,
        max_model_len=longest,
        max_num_batched_tokens=slots * longest,
        max_num_seqs=slots,
    )
    return Twins(Machine(config, MINIATURE), Machine(config, STATIC))


@frozen
class Late:
    """A request that is served later by the first machine than by the second."""

    id: str
    first: tuple[int | None, int | None]
    """Start and end; None is never."""
    second: tuple[int | None, int | None]


@theorem("ORD-1", Kind.O)
def too_late(first: Course, second: Course) -> tuple[Late, ...]:
    """With steps of equal cost, as many slots, first come first served, and memory and budget out
    of the way, every request starts and ends no later under continuous than under static batching.

    Proof. Number the requests by arrival; let a be the arrival, c and s the starts under continuous
    and static batching. Nobody is preempted and every step gives each running request one token, so
    a request with n tokens of output ends n steps after its start, under both. It remains to show
    c(i) ≤ s(i), by induction on i. Look at step s(i). By first come first served each j < i has
    s(j) ≤ s(i), so c(j) ≤ s(i): all before i have started under continuous batching too. Those of
    them that still run there have c(j) + n(j) > s(i), so s(j) + n(j) > s(i): they still run under
    static batching as well, where i found a slot beside them. So fewer than all slots are taken by
    them, nobody behind i has started before i, i has arrived: continuous batching, which
    leaves no slot empty while somebody waits, starts i in this step unless it already has. ∎

    Nothing was used of static batching but that it serves first come first served in these slots:
    continuous batching is no later than *any* such way to fill them.

    Returns those that start or end later in the first course; nobody, if the theorem holds.
    """
    times = [(starts(c.steps), ends(c.steps)) for c in (first, second)]
    found = []
    for id in sorted(times[1][0]):  # nobody is later than never
        one, two = ((start.get(id), end.get(id)) for start, end in times)
        if any(map(later, one, two)):
            found.append(Late(id, one, two))
    return tuple(found)


def later(first: int | None, second: int | None) -> bool:
    """The first moment is after the second; None is never."""
    return second is not None and (first is None or first > second)


# --- every stream of a scope -----------------------------------------------------------------


@frozen
class Scope:
    """All streams of 1 to `requests` requests, in order of arrival, each of which arrives at one of
    the steps 0 … `last_arrival` and writes 1 … `outputs` tokens; each with 1 … `slots` slots.

    Requests that arrive together are told apart by their order: it is that of serving.
    """

    requests: int
    last_arrival: int
    outputs: int
    slots: int

    @property
    def longest(self) -> int:
        """Tokens of the longest text: the prompts have one."""
        return 1 + self.outputs


CI = Scope(requests=4, last_arrival=3, outputs=3, slots=3)
NIGHTLY = Scope(requests=5, last_arrival=3, outputs=4, slots=3)


@frozen
class Twin:
    """A stream, and the courses that it takes through two machines."""

    slots: int
    stream: Stream
    first: Course
    second: Course


def courses(scope: Scope) -> Iterator[Twin]:
    """Every stream of a scope through ORD-1's machines, each stream once."""
    for slots in range(1, scope.slots + 1):
        twins = unhindered(slots, scope.longest)
        root = Twin(slots, Stream(()), begin(twins.first), begin(twins.second))
        yield from _grown(scope, root)


def _grown(scope: Scope, twin: Twin) -> Iterator[Twin]:
    """The streams that go on from one as it stands before step `len(first.steps)`."""
    step, came = len(twin.first.steps), len(twin.stream.arrivals)
    if step > scope.last_arrival:
        if came:
            yield evolve(twin, first=twin.first.drained(), second=twin.second.drained())
        return
    for count in range(scope.requests - came + 1):
        for outputs in product(range(1, scope.outputs + 1), repeat=count):
            due = tuple(Submit(f"r{i}", (0,), n) for i, n in enumerate(outputs, came))
            arrivals = twin.stream.arrivals + tuple(Arrival(step, submit) for submit in due)
            grown = Twin(twin.slots, Stream(arrivals), twin.first.step(due), twin.second.step(due))
            yield from _grown(scope, grown)
