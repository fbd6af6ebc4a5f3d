"""Watch a machine: ask every property after each transition, and count the answers.

A property that falls where the registry says that it falls, and after what it says brings that
about, is *known*; any other fall is a verdict. Antecedents are counted, so that a report can say
how often a property really checked something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import define, field, frozen

from servecheck.known import Awaited, Known
from servespec.machine import Action, Machine, Transition
from servespec.plan import State
from servespec.properties import (
    PROPERTIES,
    VACUOUS,
    Fall,
    Monitor,
    Property,
    Step,
    step_of,
)


@frozen
class Fallen:
    """A property that fell at a step, and whether the registry knows that it does here."""

    property: Property
    what: str
    known: bool

    def __str__(self) -> str:
        return f"{self.property.id} falls: {self.what} ({self.property.statement})"


@define
class Watch:
    """All properties (or some) over one run of one machine."""

    machine: Machine
    state: State
    """Where the run starts."""
    properties: Iterable[Property] = field(factory=lambda: tuple(PROPERTIES.values()))
    checked: Counter[str] = field(factory=Counter)
    """How often the antecedent of each property was true."""
    _monitors: list[tuple[Property, Monitor]] = field(init=False)
    _known: Known = field(init=False)
    _awaited: Awaited = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.properties = tuple(self.properties)
        self.restart(self.state)
        self._known = Known.of(self.machine, self.properties)
        self._awaited = self._known.start()

    def restart(self, state: State) -> None:
        """Go on from another state: what is remembered of the way here does not count there."""
        self.state = state
        self._monitors = [(p, p.start(self.machine, state)) for p in self.properties]

    def see(self, before: State, action: Action, moved: Transition) -> tuple[Fallen, ...]:
        """Ask every property about one transition; all that fell."""
        return self.see_step(step_of(self.machine, before, action, moved))

    def see_step(self, step: Step) -> tuple[Fallen, ...]:
        if not self._monitors:
            self.state = step.after
            return ()
        fallen: list[Fallen] = []
        self._awaited = self._known.after(self._awaited, step)
        for at, (p, monitor) in enumerate(self._monitors):
            goes_on, outcome = monitor.after(step)
            if goes_on is not monitor:
                self._monitors[at] = (p, goes_on)
            if outcome is VACUOUS:
                continue
            self.checked[p.id] += 1
            if isinstance(outcome, Fall):
                known = self._known.known(p, self._awaited, step)
                fallen.append(Fallen(p, outcome.what, known))
        self.state = step.after
        return tuple(fallen)
