"""An entry of the zoo: a fault that a real engine had, as the smallest change of the fast engine.

Theory of operation. An entry is a class that overrides one part of the fast engine, now and then
two: the pool, the tree of texts, a scheduling pass, or the engine around them. `fault` enters it;
its docstring says what users saw, the first line being the title. Nothing of the engine is copied:
what a change does not name is the engine itself, and goes on with it.

    @fault("double-release", expects="OWN-1", needs="blocks are shared")
    class QueuedAtEveryRelease(FastPool): …

    ENTRIES ──▶ Entry.make(config, policy) ──▶ Planted, an engine of L3 that tells its events too

The public reports that an entry stands for are listed in `reports.toml`, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import TypeVar

from attrs import evolve, field, frozen

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Trie
from servecheck.engines.protocol import SeenState
from servecheck.engines.whole import FastWhole, MakeWhole
from servespec.config import Config
from servespec.events import Event
from servespec.machine import Machine
from servespec.policy import Policy

T = TypeVar("T", bound=type)

ENTRIES: dict[str, Entry] = {}
"""All that are entered so far, by id; `servecheck.zoo` enters all."""


@frozen
class Parts:
    """What an engine is built of."""

    engine: type[FastEngine] = FastEngine
    passes: type[Pass] = Pass
    pool: type[FastPool] = FastPool
    trie: type[Trie] = Trie

    def with_part(self, part: type) -> Parts:
        """The same, with another part in its place."""
        if issubclass(part, FastEngine):
            return evolve(self, engine=part)
        if issubclass(part, Pass):
            return evolve(self, passes=part)
        if issubclass(part, FastPool):
            return evolve(self, pool=part)
        if issubclass(part, Trie):
            return evolve(self, trie=part)
        raise TypeError(f"{part.__name__} is no part of the fast engine")

    def build(self, config: Config, policy: Policy) -> FastEngine:
        """An engine of these parts."""
        engine = self.engine(config, policy)
        engine.passes = self.passes
        if self.pool is not FastPool:
            engine.pool = self.pool(config, policy, engine.log)
        if self.trie is not Trie:
            engine.pool.trie = self.trie(config.num_blocks)
        return engine


@frozen
class Entry:
    """A fault: what it is, and how an engine gets it."""

    id: str
    title: str
    """In one sentence."""
    seen: str
    """What users saw."""
    subject: str
    """The module that it stands in."""
    root_cause: str
    """The class of fault."""
    expects: str
    """The property that must fall, or, where all hold, that of the spec's next state."""
    needs: str
    """What sizes and choices must allow for it to show."""
    parts: Parts = field(repr=False)
    masked: str = ""
    """The second guard behind which the fault cannot be seen, if that is so."""

    def make(self, config: Config, policy: Policy) -> Planted:
        """An engine with the fault (`servecheck.engines.protocol.EngineFactory`)."""
        return Planted(self.parts, config, policy)

    def whole(self) -> MakeWhole:
        """Makes engines with the fault that are driven by actions."""

        def made(machine: Machine) -> FastWhole:
            return FastWhole(machine, self.parts.build(machine.config, machine.policy))

        return made


class Planted(FastLoop):
    """The fast engine with other parts, at L3; what it told of the last action is kept."""

    def __init__(self, parts: Parts, config: Config, policy: Policy) -> None:
        self.engine = parts.build(config, policy)
        self.told: tuple[Event, ...] = ()

    def see_state(self) -> SeenState:
        self.told = self.engine.events()
        return super().see_state()


def fault(
    root_cause: str, *, expects: str, needs: str = "", masked: str = "", beside: type | None = None
) -> Callable[[T], T]:
    """Enter a class, which is a part of the fast engine, as a fault; `beside` is a second part."""

    def entered(part: T) -> T:
        parts = Parts().with_part(part)
        if beside is not None:
            parts = parts.with_part(beside)
        title, _, seen = cleandoc(part.__doc__ or "").partition("\n")
        name = re.sub("(?<!^)(?=[A-Z])", "-", part.__name__).lower()
        subject = part.__module__.rpartition(".")[2]
        if name in ENTRIES or not title:
            raise ValueError(f"{part.__name__}: an entry has a name of its own, and a docstring")
        ENTRIES[name] = Entry(
            name, title, " ".join(seen.split()), subject, root_cause, expects, needs, parts, masked
        )
        return part

    return entered
