"""LIV-1 on the graph of states: who is never served, and how the loop goes round without it.

Theory of operation. The states are searched once, up to names. Then one request is *tagged*, and
kept out of the symmetry: a node is a state and the place of a live request in it. There is one for
each, since whoever is live has arrived some time. The edges are what may happen for ever while the
tagged request waits (`goes_on`): Schedule and Complete, which are weakly fair, and arrivals that
are served after it; an edge follows the tagged request to its new place, and there is none where
it leaves.

*A fair run never serves somebody exactly if this graph has a cycle.*

* From a run to a cycle. Aborts, discards, resets and arrivals of better ones are finitely many, so
  from some moment on the run takes edges only. The scope has finitely many nodes: one comes again.
* From a cycle to a run. Every state of the search is reached, so its live requests have arrived; go
  there, tag the one at that place, and go round for ever. Requests are bounded, so arrivals alone
  do not lead back; a pass leads to its outcome and an outcome to no other but by a pass: both are
  on the cycle, so the run is fair. The tagged request stays; it gets no token, for an output never
  becomes shorter.
* The quotient by names. Who is tagged is told by a place, and an action is offered in all states of
  a key or, under other names, in none, moves places alike, and is as fair (EQV-1). So a cycle goes
  round in concrete states too, each time under other names of blocks and requests. These are
  finitely many: some concrete state comes again, and from there on it is a loop of the machine, a
  *lasso*.

`Fits.ALL` is LIV-1: all kinds that arrive fit alone, or the theorem says nothing. On a cycle
without arrivals nobody at all gets a token.

What has no way on for ever is peeled off first, node by node. Mostly nothing is left: then there
is no cycle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import Enum

from attrs import evolve, frozen

from servecheck.explore.search import NO_LIMITS, Found, Limits, Progress, search, walk
from servecheck.explore.serving import Serving
from servecheck.trace.fairness import goes_on
from servespec.actions import Action, Submit
from servespec.machine import fits_alone, refused
from servespec.plan import State


class Fits(Enum):
    """Who must fit alone."""

    ALL = "all"  # as LIV-1 says
    TAGGED = "tagged"  # who is starved; others may be such as can never be served


@frozen
class Lasso:
    """A run that never serves somebody: actions up to a state, and actions that lead back to it."""

    stem: tuple[Action, ...]
    loop: tuple[Action, ...]
    starved: str
    """The id of who is never served."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Once round."""
        return self.stem + self.loop

    @property
    def arrivals(self) -> bool:
        """Others arrive, and are served, on the loop; else nobody gets anything."""
        return any(isinstance(action, Submit) for action in self.loop)


@frozen
class Liveness:
    """What the search says of LIV-1."""

    found: Found[bytes]
    lasso: Lasso | None
    """One with the fewest actions, if there is one."""
    starving: int
    """Live requests of states, up to names, that a loop goes round without."""

    @property
    def verdict(self) -> str:
        if self.lasso is not None:
            return "falls"
        return "holds" if self.found.exhausted else "undetermined"


def fitting(system: Serving, fits: Fits = Fits.ALL) -> Serving:
    """The system without the kinds that do not fit alone, or only without those that are turned
    away: nothing comes of these."""
    m = system.machine
    kinds = (k for k in system.kinds if not refused(m, k))
    return evolve(system, kinds=tuple(k for k in kinds if fits is Fits.TAGGED or fits_alone(m, k)))


def liveness(
    system: Serving,
    *,
    limits: Limits = NO_LIMITS,
    processes: int = 1,
    arrivals: bool = True,
    fits: Fits = Fits.ALL,
    report: Callable[[Progress], None] | None = None,
) -> Liveness:
    """Search for a request that is never served; without `arrivals`, for a loop in which nobody is
    served at all."""
    system = fitting(system, fits)
    found = search(system, limits=limits, processes=processes, edges=True, report=report)
    left = peeled(_ways_on(system, found, arrivals))
    if not left:
        return Liveness(found, None, 0)
    import networkx as nx

    graph = nx.DiGraph([(node, after) for node, afters in left.items() for after in afters])
    cycles = [c for c in nx.strongly_connected_components(graph) if len(c) > 1]
    within = {node: [a for a in left[node] if a in c] for c in cycles for node in c}
    return Liveness(found, _smallest(system, found, within), len(within))


# --- the graph -----------------------------------------------------------------------------

Ways = dict[int, list[int]]
"""Of each node where it leads. The node of the request at a place of a state is state * live +
place."""


def _ways_on(system: Serving, found: Found[bytes], arrivals: bool) -> Ways:
    machine, ways = system.machine, dict[int, list[int]]()
    for number, successors in enumerate(found.graph.edges or []):
        state = system.restore(found.graph.keys[number])
        tagged = [(i, r) for i, r in enumerate(state.live) if fits_alone(machine, r)]
        for place, _ in tagged:
            ways[number * system.live + place] = []
        for action, after in zip(system.enabled(state), successors, strict=True):
            waiting = [(i, r) for i, r in tagged if goes_on(machine.policy, action, r)]
            if not waiting or (isinstance(action, Submit) and not arrivals):
                continue
            places = {r.id: i for i, r in enumerate(system.apply(state, action).state.live)}
            for place, r in waiting:
                if r.id in places:
                    node = number * system.live + place
                    ways[node].append(after * system.live + places[r.id])
    return ways


def peeled(ways: Ways) -> Ways:
    """What is left when nodes that lead nowhere are taken away until there are none: all that leads
    to a cycle."""
    back: Ways = {}
    for node, afters in ways.items():
        for after in afters:
            back.setdefault(after, []).append(node)
    count = {node: len(afters) for node, afters in ways.items()}
    ended = [node for node in {**ways, **back} if not count.get(node)]
    gone = set(ended)
    while ended:
        for node in back.get(ended.pop(), ()):
            count[node] -= 1
            if count[node] == 0:
                gone.add(node)
                ended.append(node)
    return {
        node: [a for a in afters if a not in gone]
        for node, afters in ways.items()
        if node not in gone
    }


# --- a lasso -------------------------------------------------------------------------------


def _smallest(system: Serving, found: Found[bytes], within: Ways) -> Lasso | None:
    """The lasso with the fewest actions, of those that go round a shortest cycle of a node."""
    best: Lasso | None = None
    for node in sorted(within):  # so those that are reached first come first
        depth = bisect_right(found.graph.depths, node // system.live) - 1
        most = None if best is None else len(best.actions) - depth - 1
        if most is not None and most < 2:
            break
        loop = _around(within, node, most)
        if loop is not None:
            lasso = _lifted(system, found, node, loop)
            if best is None or len(lasso.actions) < len(best.actions):
                best = lasso
    return best


def _around(ways: Ways, start: int, most: int | None) -> tuple[int, ...] | None:
    """The nodes of a shortest way from a node back to it, which is the last one; of at most so
    many."""
    came: dict[int, int] = {}
    level = [start]
    while level and (most is None or most > 0):
        following: list[int] = []
        for node in level:
            for after in ways[node]:
                if after not in came:
                    came[after] = node
                    following.append(after)
        if start in came:
            back = [start]
            while came[back[-1]] != start:
                back.append(came[back[-1]])
            return tuple(reversed(back))
        level, most = following, None if most is None else most - 1
    return None


def _lifted(system: Serving, found: Found[bytes], node: int, loop: Sequence[int]) -> Lasso:
    """Concrete actions to a node and round its loop, until a concrete state comes again."""
    way = [found.graph.keys[i] for i in found.graph.way(node // system.live)]
    state, stem = system.initial(), list[Action]()
    for action, after in walk(system, way):
        stem.append(action)
        state = after
    starved = state.live[node % system.live].id
    actions, been = list[Action](), dict[State, int]()
    while state not in been:
        been[state] = len(actions)
        for to in loop:
            action, state = _goes(system, state, starved, to, found)
            actions.append(action)
    enters = been[state]
    return Lasso((*stem, *actions[:enters]), tuple(actions[enters:]), starved)


def _goes(
    system: Serving, state: State, starved: str, to: int, found: Found[bytes]
) -> tuple[Action, State]:
    """The edge from a concrete state to a node."""
    key, place = found.graph.keys[to // system.live], to % system.live
    waits = state.find(starved)
    for action in () if waits is None else system.enabled(state):
        if waits is not None and goes_on(system.machine.policy, action, waits):
            after = system.apply(state, action).state
            there = [r.id for r in after.live].index(starved) if after.find(starved) else None
            if there == place and system.canonical(after) == key:
                return action, after
    raise LookupError(f"no way leads on to {key!r}: the symmetry is not sound")
