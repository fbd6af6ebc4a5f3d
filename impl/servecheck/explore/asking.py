"""Every property on every state and every transition of a serving system.

Theory of operation. A monitor has a memory, so what is searched is the *product*: a node is a
state, the memories of the monitors, and which lasting causes of known falls have not happened yet.
All three take the names of the representative. Properties of states are asked once of each node,
those of transitions of each transition; monitors answer as the product moves.

A fall that the registry knows of, after what it says brings it about, is counted apart: its label
is `Label(id, known=True)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from attrs import field, frozen

from servecheck.explore.errors import ScopeError
from servecheck.explore.search import Seen
from servecheck.explore.serving import Serving
from servecheck.explore.system import Moved
from servecheck.known import Awaited, Known
from servecheck.marks import marks_of
from servespec.actions import Abort, Action
from servespec.plan import State
from servespec.properties import (
    PROPERTIES,
    VACUOUS,
    Fall,
    Kind,
    Monitor,
    Property,
    Renamable,
    Step,
    step_of,
)

KNOWN = " as known"
"""Behind the id of a property: it falls where the registry says so."""
MARK = "mark "
"""Before the name of a mark, among what is counted."""

NOTHING = Abort("")
"""A step that a state can be asked in: nobody is called so, and nothing happens."""


@frozen
class Node:
    """A state of the product."""

    state: State
    memory: tuple[Renamable, ...] = ()
    awaited: Awaited = ()


Key = tuple[bytes, tuple[Renamable, ...], Awaited]


@frozen
class NodeMoved:
    state: Node
    step: Step
    seen: Seen
    """What the monitors said."""


@frozen
class Asking:
    """A serving system with properties: the system that is searched, and the eye that looks on."""

    base: Serving
    properties: tuple[Property, ...] = tuple(PROPERTIES.values())
    marks: bool = False
    """Count the situations that are reached, too."""
    raw: bool = False
    """Without symmetry: each node is its own key."""
    _known: Known = field(init=False, eq=False, repr=False)
    _of: dict[Kind, tuple[tuple[Property, Monitor], ...]] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        machine, initial = self.base.machine, self.base.initial()
        object.__setattr__(self, "_known", Known.of(machine, self.properties))
        of = {
            kind: tuple((p, p.start(machine, initial)) for p in self.properties if p.kind is kind)
            for kind in Kind
        }
        for p, monitor in of[Kind.M]:
            if not hasattr(monitor, "renamed"):
                raise ScopeError(f"{p.id} cannot be searched", "watch it along a trace")
        object.__setattr__(self, "_of", of)

    # --- the product ---

    def initial(self) -> Node:
        memory = tuple(cast(Renamable, monitor) for _, monitor in self._of[Kind.M])
        return Node(self.base.initial(), memory, self._known.start())

    def enabled(self, node: Node) -> Iterable[Action]:
        return self.base.enabled(node.state)

    def apply(self, node: Node, action: Action) -> NodeMoved:
        moved = self.base.apply(node.state, action)
        step = step_of(self.base.machine, node.state, action, moved)
        awaited = self._known.after(node.awaited, step)
        goes_on: list[Renamable] = []
        falls: list[tuple[str, str]] = []
        counts: list[str] = []
        for (p, _), monitor in zip(self._of[Kind.M], node.memory, strict=True):
            after, outcome = monitor.after(step)
            goes_on.append(after)
            self._note(p, outcome, awaited, step, falls, counts)
        after_ = Node(moved.state, tuple(goes_on), awaited)
        return NodeMoved(after_, step, Seen(tuple(falls), tuple(counts)))

    def canonical(self, node: Node) -> Key | Node:
        if self.raw:
            return node
        if not node.memory:
            return self.base.canonical(node.state), (), node.awaited
        key, names = self.base.named(node.state)
        return key, tuple(monitor.renamed(names) for monitor in node.memory), node.awaited

    def restore(self, key: Key | Node) -> Node:
        if isinstance(key, Node):
            return key
        return Node(self.base.restore(key[0]), key[1], key[2])

    # --- the eye ---

    def state(self, node: Node) -> Seen:
        here = Step(self.base.machine, node.state, NOTHING, node.state, ())
        return self._asked(Kind.S, node.awaited, here)

    def step(self, before: Node, action: Action, moved: Moved[object]) -> Seen:
        if not isinstance(moved, NodeMoved):
            return Seen()
        seen = self._asked(Kind.T, moved.state.awaited, moved.step)
        marks = tuple(MARK + m.name for m in marks_of(moved.step)) if self.marks else ()
        return Seen(seen.falls + moved.seen.falls, seen.counts + moved.seen.counts + marks)

    def _asked(self, kind: Kind, awaited: Awaited, step: Step) -> Seen:
        falls: list[tuple[str, str]] = []
        counts: list[str] = []
        for p, monitor in self._of[kind]:
            self._note(p, monitor.after(step)[1], awaited, step, falls, counts)
        return Seen(tuple(falls), tuple(counts))

    def _note(
        self,
        p: Property,
        outcome: object,
        awaited: Awaited,
        step: Step,
        falls: list[tuple[str, str]],
        counts: list[str],
    ) -> None:
        if outcome is VACUOUS:
            return
        counts.append(p.id)
        if isinstance(outcome, Fall):
            known = self._known.known(p, awaited, step)
            falls.append((p.id + KNOWN if known else p.id, outcome.what))
