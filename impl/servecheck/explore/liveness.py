"""LIV-1 on the graph of states: who is never served, and how the loop goes round without it.

Theory of operation. One request is *tagged*, and kept out of the symmetry: a node is a state and
the place of its tagged request. The graph has every transition; what may happen for ever is only

* Schedule and Complete, which are weakly fair: on a cycle there are both, since nothing else can
  happen endlessly without them;
* arrivals that are served after the tagged one, so not those of a better priority.

Aborts, discards, resets and better arrivals are finitely many, so they lie before the cycle. The
tagged request finishes on every fair run exactly if no cycle of these edges keeps it alive, so
exactly if no strongly connected component of them has an edge. All kinds of the scope must fit
alone, or the theorem says nothing. Output is bounded, so on a cycle the tagged one gets no token;
and on a cycle without arrivals *nobody* gets one.

A cycle is lifted to concrete states by going round until every name is back: a *lasso*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import networkx as nx
from attrs import evolve, frozen

from servecheck.explore.search import NO_LIMITS, Found, Limits, Progress, search, walk
from servecheck.explore.serving import Serving
from servespec.actions import Action, Complete, Schedule, Submit
from servespec.machine import fits_alone
from servespec.plan import State
from servespec.policy import Order


@frozen
class TaggedState:
    state: State
    tag: str | None = None
    """The id of the tagged request, once there is one."""


@frozen
class TaggedAction:
    action: Action
    tags: bool = False
    """The request that this submits is the tagged one."""


@frozen
class TaggedMoved:
    state: TaggedState


GONE = b""
"""The key of all states that the tagged request has left."""


@frozen
class Tagged:
    """A serving system in which one request is followed from its arrival on."""

    base: Serving

    def initial(self) -> TaggedState:
        return TaggedState(self.base.initial())

    def enabled(self, here: TaggedState) -> Iterator[TaggedAction]:
        if here.tag is not None and here.state.find(here.tag) is None:
            return
        for action in self.base.enabled(here.state):
            yield TaggedAction(action)
            if here.tag is None and isinstance(action, Submit):
                yield TaggedAction(action, tags=True)

    def apply(self, here: TaggedState, action: TaggedAction) -> TaggedMoved:
        moved = self.base.apply(here.state, action.action)
        tag = here.tag
        if action.tags and isinstance(action.action, Submit):
            tag = action.action.id
        return TaggedMoved(TaggedState(moved.state, tag))

    def canonical(self, here: TaggedState) -> bytes:
        if here.tag is None:
            return bytes((0,)) + self.base.canonical(here.state)
        place = next((i for i, r in enumerate(here.state.live, 1) if r.id == here.tag), None)
        return GONE if place is None else bytes((place,)) + self.base.canonical(here.state)

    def restore(self, key: bytes) -> TaggedState:
        if key == GONE:
            return TaggedState(self.base.initial(), "")
        state = self.base.restore(key[1:])
        return TaggedState(state, state.live[key[0] - 1].id if key[0] else None)


def goes_on(system: Serving, here: TaggedState, action: Action) -> bool:
    """This may happen for ever while the tagged request waits: LIV-1's fairness."""
    if isinstance(action, Schedule | Complete):
        return True
    tagged = None if here.tag is None else here.state.find(here.tag)
    if not isinstance(action, Submit) or tagged is None:
        return False
    return system.machine.policy.order is Order.FCFS or action.priority >= tagged.priority


@frozen
class Lasso:
    """A run that never serves somebody: actions up to a state, and actions that lead back to it."""

    stem: tuple[Action, ...]
    loop: tuple[Action, ...]
    starved: str
    """The id of who is never served."""

    @property
    def arrivals(self) -> bool:
        """Others arrive, and are served, on the loop; else nobody gets anything."""
        return any(isinstance(action, Submit) for action in self.loop)


@frozen
class Liveness:
    """What the search says of LIV-1."""

    found: Found[bytes]
    lasso: Lasso | None
    """A shortest one to reach, if there is one."""
    starving: int
    """States with a tagged request from which the loop can go round without it."""

    @property
    def verdict(self) -> str:
        if self.lasso is not None:
            return "falls"
        return "holds" if self.found.exhausted else "undetermined"


def fitting(system: Serving) -> Serving:
    """The system without the kinds that do not fit alone: LIV-1's condition."""
    kinds = tuple(kind for kind in system.kinds if fits_alone(system.machine, kind))
    return evolve(system, kinds=kinds)


def liveness(
    system: Serving,
    *,
    limits: Limits = NO_LIMITS,
    processes: int = 1,
    arrivals: bool = True,
    report: Callable[[Progress], None] | None = None,
) -> Liveness:
    """Search for a request that is never served; without `arrivals`, for a loop in which nobody is
    served at all."""
    tagged = Tagged(fitting(system))
    found = search(tagged, limits=limits, processes=processes, edges=True, report=report)
    forever = _forever(tagged, found, arrivals)
    cycles = [c for c in nx.strongly_connected_components(forever) if _goes_round(forever, c)]
    if not cycles:
        return Liveness(found, None, 0)
    first = min(min(component) for component in cycles)
    component = next(c for c in cycles if first in c)
    loop = _shortest_loop(forever.subgraph(component), first)
    return Liveness(found, _lifted(tagged, found, first, loop), sum(map(len, cycles)))


def _forever(system: Tagged, found: Found[bytes], arrivals: bool) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    edges = found.graph.edges or []
    for number, successors in enumerate(edges):
        key = found.graph.keys[number]
        if key == GONE or key[0] == 0:
            continue
        here = system.restore(key)
        for action, after in zip(system.enabled(here), successors, strict=True):
            if not arrivals and isinstance(action.action, Submit):
                continue
            if found.graph.keys[after] != GONE and goes_on(system.base, here, action.action):
                graph.add_edge(number, after)
    return graph


def _goes_round(graph: nx.DiGraph[int], component: set[int]) -> bool:
    return len(component) > 1 or any(graph.has_edge(n, n) for n in component)


def _shortest_loop(graph: nx.DiGraph[int], start: int) -> tuple[int, ...]:
    """From a state back to it; the start is not told again at the end."""
    back = (nx.shortest_path(graph, after, start) for after in sorted(graph.successors(start)))
    return min(((start, *way[:-1]) for way in back), key=len)


MOST_ROUNDS = 256
"""Names are back after as many rounds as their permutation has order; few names, few rounds."""


def _lifted(system: Tagged, found: Found[bytes], first: int, loop: Sequence[int]) -> Lasso:
    keys = found.graph.keys
    stem = [keys[i] for i in found.graph.way(first)]
    around = [keys[i] for i in (*loop[1:], first)]
    actions: list[Action] = []
    entry: TaggedState | None = system.initial() if len(stem) == 1 else None
    for action, here in walk(system, stem + around * MOST_ROUNDS):
        actions.append(action.action)
        at = len(actions) - (len(stem) - 1)
        if at == 0:
            entry = here
        elif at > 0 and at % len(around) == 0 and here == entry:
            return Lasso(tuple(actions[:-at]), tuple(actions[-at:]), here.tag or "")
    raise LookupError(f"the names are not back after {MOST_ROUNDS} rounds")
