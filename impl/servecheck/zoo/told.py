"""An entry beside the specification: states and plans at L3, and what was told as well.

Theory of operation. `EngineFollower` compares what the engine shows. An engine can be right and
tell something else, which is a fault for whoever listens to it; so the events of each action are
compared too, keys by what they name.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define

from servecheck.lockstep.compare import Comparison, Difference, Names
from servecheck.lockstep.follow import Diverged, EngineFollower
from servecheck.lockstep.subject import Comparing, Subject
from servecheck.zoo.entry import Entry, Planted
from servespec.chain import Chain
from servespec.events import BlockRemoved, BlockStored, Event
from servespec.machine import Machine
from servespec.properties import Step


@define
class Listening(EngineFollower):
    """An engine of the zoo beside the specification, which is listened to."""

    def follow(self, step: Step) -> None:
        EngineFollower.follow(self, step)
        told = self.engine.told if isinstance(self.engine, Planted) else ()
        self.comparison.compared["events"] += 1
        found = tuple(differences(self.comparison.names, step.events, told))
        if found:
            self.done -= 1
            raise Diverged(self._divergence(step, found))


def subject_of(entry: Entry) -> Subject:
    """Engines with the fault of an entry, to be compared."""

    def start(machine: Machine) -> Comparing:
        made = entry.make(machine.config, machine.policy)
        return Listening(made, Comparison.of(machine.policy))

    return Subject(start)


def differences(
    names: Names, said: tuple[Event, ...], told: tuple[Event, ...]
) -> Iterator[Difference]:
    """The first event that is not what it should be."""
    for mine, theirs in zip(said, told, strict=False):
        if not _same(names, mine, theirs):
            yield Difference(f"event {type(mine).__name__}", mine, theirs)
            return
    if len(said) != len(told):
        at = min(len(said), len(told))
        ends = [events[at] if at < len(events) else "nothing more" for events in (said, told)]
        yield Difference("events", *ends)


def _same(names: Names, said: Event, told: Event) -> bool:
    match said, told:
        case BlockStored(block, key, parent), BlockStored(other, theirs, before):
            named = names.agree(theirs, key) and _parent(names, parent, before)
            return block == other and named
        case BlockRemoved(block, key), BlockRemoved(other, theirs):
            return block == other and names.agree(theirs, key)
        case _:
            return said == told


def _parent(names: Names, said: Chain | None, told: Chain | None) -> bool:
    if said is None or told is None:
        return said is told
    return names.agree(told, said)
