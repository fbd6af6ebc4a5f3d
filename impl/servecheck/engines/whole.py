"""A serving loop that hides nothing: it takes actions, tells events, and shows its whole state.

Theory of operation. The specification is such a loop, and so is the fast engine through its
abstraction. What is driven by actions and judged by events and states (the miniature, recordings,
traces) takes a `Whole` and runs on either, with no word of the other in between: an engine is held
against what is written, not against the specification.

    actions ──▶ Whole.apply ──▶ events
                Whole.state ──▶ a state of the specification; an engine's has no content (a ghost)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from attrs import define, field

from servespec.actions import Action
from servespec.events import Event
from servespec.machine import Machine
from servespec.plan import State

if TYPE_CHECKING:
    from servecheck.engines.fast.engine import FastEngine


class Whole(Protocol):
    """A serving loop whose events and state are told in the specification's own terms."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> State: ...

    def apply(self, action: Action) -> tuple[Event, ...]:
        """Carry out an action.

        Raises:
            ActionDisabled: this state does not offer it; nothing happened.
        """
        ...


@define
class SpecWhole:
    """The specification, and the state that it is in."""

    machine: Machine
    state: State = field(init=False)
    name = "spec"

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()

    def apply(self, action: Action) -> tuple[Event, ...]:
        moved = self.machine.apply(self.state, action)
        self.state = moved.state
        return moved.events


class FastWhole:
    """The fast engine. Its state is read when it is asked for, once an action."""

    name = "fast"

    def __init__(self, machine: Machine, engine: FastEngine | None = None) -> None:
        from servecheck.engines.fast.engine import FastEngine

        self.engine = engine or FastEngine(machine.config, machine.policy)
        self._read: State | None = None

    @property
    def state(self) -> State:
        from servecheck.engines.fast.abstraction import abstraction

        if self._read is None:
            self._read = abstraction(self.engine)
        return self._read

    def apply(self, action: Action) -> tuple[Event, ...]:
        self._read = None
        return self.engine.apply(action)


MakeWhole = Callable[[Machine], Whole]
"""Starts a loop with the sizes and choices of a machine."""

WHOLE: dict[str, MakeWhole] = {"spec": SpecWhole, "fast": FastWhole}
"""Those that there are, by name."""
