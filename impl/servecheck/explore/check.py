"""Checking a scope: search it to its end, ask everything, and say what came of it.

Theory of operation. A scope of the cache machine is searched in its encoding, with the properties
of states; one of the serving machine in the product with its monitors, with every property, every
mark, and LIV-1 on the graph of the scope's own kinds. A property then

* *holds*: the search is exhausted, and it was asked at least once;
* *falls*, or falls *as known*, where the registry says that it does: with the shortest program;
* is *vacuous*: the search is exhausted, and nothing in the scope makes its antecedent true;
* is *undetermined*: the search stopped before its end.

The verdict of the scope is the worst of them, and never better than undetermined if it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import TypeVar

from attrs import evolve, frozen

from servecheck.explore.asking import KNOWN, MARK, Asking, Key, Node
from servecheck.explore.cache import Symmetry
from servecheck.explore.liveness import Fits, Liveness, liveness
from servecheck.explore.pool_eye import PoolEye, pool_properties
from servecheck.explore.scopes import PoolScope, Scope, ServingScope
from servecheck.explore.search import (
    NO_LIMITS,
    REFUSED,
    Ended,
    Fallen,
    Found,
    Limits,
    Progress,
    Seen,
    search,
    walk,
)
from servecheck.trace.lasso import LASSO
from servecheck.watch import Watch
from servespec.actions import Action
from servespec.cache import CacheAction
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.properties import PROPERTIES, Property

K = TypeVar("K", bound=Hashable)
Report = Callable[[Progress], None]


class Says(Enum):
    """What a search says of a property, best first."""

    HOLDS = "holds"
    VACUOUS = "vacuous"
    KNOWN = "falls, as known"
    UNDETERMINED = "undetermined"
    FALLS = "falls"


@frozen
class Answer:
    """One property in one scope."""

    id: str
    says: Says
    asked: int
    """States, or transitions, in which its antecedent was true."""
    what: str = ""
    program: tuple[Action | CacheAction, ...] = ()
    """The shortest on which it falls."""
    loop: tuple[Action, ...] = ()
    """LIV-1: what goes round for ever behind the program."""


@frozen
class Checked:
    """A scope, searched."""

    scope: Scope
    ended: Ended
    states: int
    transitions: int
    depth: int
    seconds: float
    answers: tuple[Answer, ...]
    marks: tuple[str, ...] = ()
    """Situations that were reached, by name."""

    @property
    def verdict(self) -> Says:
        """The worst of its answers; what is as known, or vacuous, speaks for nothing else."""
        said = {answer.says for answer in self.answers}
        for worst in (Says.FALLS, Says.UNDETERMINED):
            if worst in said:
                return worst
        return Says.HOLDS if self.ended is Ended.EXHAUSTED else Says.UNDETERMINED


@frozen
class Wish:
    """How a scope is to be checked."""

    limits: Limits = NO_LIMITS
    processes: int = 1
    raw: bool = False
    properties: frozenset[str] | None = None
    """Ids; all, if not said."""

    def wants(self, name: str) -> bool:
        return self.properties is None or name in self.properties


def check(scope: Scope, wish: Wish, report: Report | None = None) -> Checked:
    """Search a scope, and answer for every property that is wished for."""
    if isinstance(scope, PoolScope):
        return _check_pool(scope, wish, report)
    return _check_serving(scope, wish, report)


def unknown(name: str) -> bool:
    """Behind a fall that the registry does not know, states mean nothing; there may be no end."""
    return not name.endswith(KNOWN)


def known_properties() -> tuple[str, ...]:
    """Everything that can be asked."""
    return (*PROPERTIES, LASSO.id)


# --- the cache machine ---------------------------------------------------------------------


def _check_pool(scope: PoolScope, wish: Wish, report: Report | None) -> Checked:
    asked = tuple(p for p in pool_properties() if wish.wants(p.id))
    system = scope.encoded(Symmetry.NONE if wish.raw else Symmetry.SLOTS)
    eye = PoolEye(scope.machine, system.decode, asked)
    found = search(
        system, eye, stops=unknown, limits=wish.limits, processes=wish.processes, report=report
    )

    def program(fallen: Fallen) -> tuple[CacheAction, ...]:
        keys = [found.graph.keys[number] for number in found.graph.way(fallen.source)]
        return tuple(system.action(action) for action, _ in walk(system, keys))

    return _checked(scope, found, asked, program)


# --- the serving machine -------------------------------------------------------------------


def _check_serving(scope: ServingScope, wish: Wish, report: Report | None) -> Checked:
    asked = tuple(p for p in PROPERTIES.values() if wish.wants(p.id))
    asking = Asking(scope.system, asked, marks=True, raw=wish.raw)
    found = search(
        asking, asking, stops=unknown, limits=wish.limits, processes=wish.processes, report=report
    )
    checked = _checked(scope, found, asked, lambda fallen: shortest(asking, found, fallen))
    if not wish.wants(LASSO.id):
        return checked
    if found.ended is Ended.INTERRUPTED:
        open_ = Answer(LASSO.id, Says.UNDETERMINED, 0)
        return evolve(checked, answers=(*checked.answers, open_))
    live = liveness(
        scope.system, fits=Fits.TAGGED, limits=wish.limits, processes=wish.processes, report=report
    )
    seconds = checked.seconds + live.found.seconds
    return evolve(checked, answers=(*checked.answers, _lively(scope, live)), seconds=seconds)


def shortest(asking: Asking, found: Found[Key | Node], fallen: Fallen) -> tuple[Action, ...]:
    """The actions of a shortest run on which a property falls, under names that stay."""
    keys = [found.graph.keys[number] for number in found.graph.way(fallen.source)]
    actions: list[Action] = []
    node = asking.initial()
    for action, after in walk(asking, keys):
        actions.append(action)
        node = after
    if fallen.ordinal is None:
        return tuple(actions)
    for action in asking.enabled(node):
        try:
            seen = asking.step(node, action, asking.apply(node, action))
        except SpecError as error:
            seen = Seen(((REFUSED, str(error)),))
        if any(name == fallen.name for name, _ in seen.falls):
            return (*actions, action)
    raise LookupError(f"{fallen.name} falls in a representative only: the symmetry is not sound")


def _lively(scope: ServingScope, live: Liveness) -> Answer:
    asked = live.found.states
    if live.lasso is None:
        says = Says.HOLDS if live.found.exhausted else Says.UNDETERMINED
        return Answer(LASSO.id, says, asked)
    lasso, machine = live.lasso, scope.system.machine
    others = "while others come and go" if lasso.arrivals else "and nobody is served"
    what = f"{lasso.starved} is never served: {len(lasso.loop)} actions go round {others}"
    says = Says.KNOWN if _known(machine, lasso.actions) else Says.FALLS
    return Answer(LASSO.id, says, asked, what, lasso.stem, lasso.loop)


def _known(machine: Machine, actions: Iterable[Action]) -> bool:
    """The registry knows of this lasso, after what happened on the way to it."""
    state = machine.initial()
    watch = Watch(machine, state, (LASSO,))
    known = True
    for action in actions:
        moved = machine.apply(state, action)
        known = known and all(fallen.known for fallen in watch.see(state, action, moved))
        state = moved.state
    return known


# --- answers -------------------------------------------------------------------------------


def _checked(
    scope: Scope,
    found: Found[K],
    asked: Iterable[Property],
    program: Callable[[Fallen], Sequence[Action] | Sequence[CacheAction]],
) -> Checked:
    fallen = {fall.name: fall for fall in found.falls}

    def answer(p: Property) -> Answer:
        count = found.counts[p.id]
        for name, says in ((p.id, Says.FALLS), (p.id + KNOWN, Says.KNOWN)):
            if fall := fallen.get(name):
                return Answer(p.id, says, count, fall.what, tuple(program(fall)))
        if not found.exhausted:
            return Answer(p.id, Says.UNDETERMINED, count)
        return Answer(p.id, Says.HOLDS if count else Says.VACUOUS, count)

    answers = tuple(map(answer, asked))
    if fall := fallen.get(REFUSED):
        refused = Answer(REFUSED, Says.FALLS, found.transitions, fall.what, tuple(program(fall)))
        answers = (*answers, refused)
    marks = (name.removeprefix(MARK) for name in found.counts if name.startswith(MARK))
    return Checked(
        scope,
        found.ended,
        found.states,
        found.transitions,
        found.depth,
        found.seconds,
        answers,
        tuple(sorted(marks)),
    )
