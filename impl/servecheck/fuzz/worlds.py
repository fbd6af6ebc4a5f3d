"""The worlds that an engine can have, found out by asking it, and the start of a walk in one.

Theory of operation. An engine says `Unsupported` to sizes and choices that it cannot have. To draw
blindly would throw most worlds away: an engine that is one profile has one policy of millions. So
it is asked first: which base policies it takes, and for each of them which values of each axis,
alone, it also takes. Worlds are then drawn as ever, and an axis with a value that the engine does
not take is put back to the base's. What it still refuses (axes that do not go together, sizes) is
drawn again, some times, then skipped; the subject counts these.

    Worlds.of(subject) ──▶ draw ──▶ begin(chance, draw, …) ──▶ Walk │ Unsupported
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache

from attrs import evolve, fields, frozen

from servecheck.engines.protocol import EngineError, Unsupported, Verb
from servecheck.fuzz.draw import (
    BASES,
    KEEP,
    Chance,
    draw_config,
    draw_world,
    fitting,
    pick,
    varied,
)
from servecheck.fuzz.walk import Walk
from servecheck.lockstep.follow import Following
from servecheck.lockstep.subject import Subject
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.properties import Property

TRIES = 8
"""Worlds drawn for one walk before it is skipped."""

SAMPLES = tuple(
    Config(blocks, size, size * 4, size * 4, max_num_seqs=4)
    for blocks, size in ((5, 2), (9, 2), (5, 1), (9, 4), (65, 16))
)
"""Sizes that all policies allow, for asking: an engine need not take all of them."""

World = tuple[Config, Policy]
Draw = Callable[[Chance], World]
WITH: Callable[..., Policy] = Policy


def anywhere(config: Config | None = None, policy: Policy | None = None) -> Draw:
    """All worlds, as far as they are not given."""
    return lambda chance: draw_world(chance, config, policy)


@frozen
class Worlds:
    """The worlds of one engine, as far as they are not given."""

    bases: tuple[Policy, ...]
    values: Mapping[Policy, Mapping[str, Sequence[object]]]
    """By base, then by axis."""
    speculates: bool
    config: Config | None = None
    policy: Policy | None = None

    @staticmethod
    def of(
        subject: Subject,
        config: Config | None = None,
        policy: Policy | None = None,
        bases: Sequence[Policy] = BASES,
    ) -> Worlds:
        """Ask the engine.

        Raises:
            Unsupported: it takes none of the bases, or not the policy that is given.
            EngineError: it is not what it says it is, or cannot be made.
        """
        asked = (policy,) if policy is not None else bases
        taken: dict[Policy, Config] = {}
        refusal: Unsupported | None = None
        for base in asked:
            for sizes in SAMPLES if config is None else (config,):
                try:
                    subject.make(Machine(sizes, base))
                except Unsupported as refused:
                    refusal = refusal or refused
                except ConfigError:
                    continue
                else:
                    taken[base] = sizes
                    break
        if not taken:
            raise refusal or Unsupported("no policy goes together with these sizes")
        values = {} if policy else {base: _values(subject, taken[base], base) for base in taken}
        can = subject.capabilities
        return Worlds(tuple(taken), values, can is None or can.can(Verb.DRAFTS), config, policy)

    def __call__(self, chance: Chance) -> World:
        policy = self.policy or self._policy(chance)
        config = self.config or draw_config(chance, policy)
        if not self.speculates and self.config is None:
            config = evolve(config, num_speculative_tokens=0, num_lookahead_tokens=0)
        return config, self.policy or fitting(config, policy)

    def _policy(self, chance: Chance) -> Policy:
        keep, base = pick(chance, KEEP), pick(chance, self.bases)
        drawn = base if keep < 0 else varied(chance, base, keep)
        mine: dict[str, object] = {}
        for axis in fields(Policy):
            value: object = getattr(drawn, axis.name)
            takes = value in self.values[base][axis.name]
            mine[axis.name] = value if takes else getattr(base, axis.name)
        return WITH(**mine)


def _values(subject: Subject, sizes: Config, base: Policy) -> dict[str, tuple[object, ...]]:
    """Of each axis the values that the engine takes, all others being the base's."""
    mine: dict[str, object] = {axis.name: getattr(base, axis.name) for axis in fields(Policy)}

    def takes(name: str, value: object) -> bool:
        try:
            subject.make(Machine(sizes, WITH(**{**mine, name: value})))
        except (Unsupported, ConfigError):
            return False
        return True

    return {
        name: tuple(v for v in _all_values(type(usual)) if v == usual or takes(name, v))
        for name, usual in mine.items()
    }


def _all_values(kind: type) -> tuple[object, ...]:
    return tuple(kind) if issubclass(kind, Enum) else (False, True)


def worlds_of(subject: Subject, config: Config | None, policy: Policy | None) -> Draw:
    """The worlds of an engine; the engine is asked when the first one is drawn."""

    @cache
    def asked() -> Draw:
        try:
            return Worlds.of(subject, config, policy)
        except Unsupported as refused:
            # Not a world that is drawn again: there is none.
            raise EngineError(str(refused)) from refused

    return lambda chance: asked()(chance)


def begin(
    chance: Chance, draw: Draw, properties: Iterable[Property], following: Following | None
) -> Walk:
    """The start of a walk in a world that the engine takes.

    Raises:
        Unsupported: it took none of those drawn.
    """
    refusal: EngineError | None = None
    for _ in range(TRIES):
        machine = Machine(*draw(chance))
        alphabet = 2 + chance.below(2)
        try:
            follower = None if following is None else following(machine)
        except Unsupported as refused:
            refusal = refused
            continue
        return Walk(machine, properties, alphabet, follower)
    raise refusal or Unsupported("no world was drawn")
