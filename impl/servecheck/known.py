"""Which falls the registry knows of, under some sizes and choices, and what causes them.

Theory of operation. A fall is *known* if what brings it about has happened
(`servespec.properties.Falls`). Most causes show in the step of the fall. Those that last are
awaited from the start of a run: numbers of what has not happened yet, a value, so that a search can
keep it beside a state.

    Known.of ──▶ start() ──▶ awaited ──after(step)──▶ awaited … known(property, awaited, step)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from servespec.machine import Machine
from servespec.properties import Falls, Property, Step

Cause = Callable[[Step], bool]
Awaited = tuple[int, ...]
"""Numbers of the lasting causes that have not happened yet."""


@frozen
class Known:
    """The falls of some properties that a machine makes possible."""

    possible: Mapping[str, tuple[Falls, ...]]
    """By property; those that cannot fall are left out."""
    causes: tuple[Cause, ...]
    """Those that last."""

    @classmethod
    def of(cls, machine: Machine, properties: Iterable[Property]) -> Known:
        """What the registry says of these properties, under the sizes and choices of a machine."""
        falls = {p.id: p.possible(machine.config, machine.policy) for p in properties}
        possible = {name: known for name, known in falls.items() if known}
        lasting = (f.cause for known in possible.values() for f in known if f.lasts)
        return cls(possible, tuple(dict.fromkeys(lasting)))

    def start(self) -> Awaited:
        """Nothing has happened yet."""
        return tuple(range(len(self.causes)))

    def after(self, awaited: Awaited, step: Step) -> Awaited:
        """What is still awaited after a step; what is no step of any machine changes nothing."""
        if not awaited or step.problem is not None:
            return awaited
        return tuple(i for i in awaited if not self.causes[i](step))

    def known(self, fallen: Property, awaited: Awaited, step: Step) -> bool:
        """Whether what makes a fall of this property a known one has happened, up to this step."""
        return step.problem is None and any(
            self.causes.index(f.cause) not in awaited if f.lasts else f.cause(step)
            for f in self.possible.get(fallen.id, ())
        )
