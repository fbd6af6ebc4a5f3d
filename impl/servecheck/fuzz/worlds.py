"""The worlds that an engine can have, found out by asking it, and the start of a walk in one.

Theory of operation. An engine says `Unsupported` to sizes and choices that it cannot have. To draw
blindly would throw most worlds away: an engine that is one profile has one policy of millions. So
it is asked first: which base policies it takes, and for each of them which values of each axis,
alone, it also takes. Worlds are then drawn as ever, and an axis with a value that the engine does
not take is put back to the base's. What it still refuses (axes that do not go together, sizes) is
drawn again, some times, then skipped; the subject counts these. Sizes are put back in the same way,
to those of the first sample that the engine took, so one that has blocks of 16 and nothing else is
fuzzed with these.

    Worlds.of(subject) ──▶ draw ──▶ begin(chance, draw, …) ──▶ Walk │ Unsupported
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache

from attrs import evolve, field, fields, frozen

from servecheck.engines.protocol import EngineError, Unsupported, Verb
from servecheck.fuzz.draw import (
    BASES,
    KEEP,
    Chance,
    draw_config,
    draw_world,
    fitting,
    pick,
    pick_base,
    varied,
)
from servecheck.fuzz.names import NAMINGS
from servecheck.fuzz.sizes import Sizes, resized
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

LIMITS = (
    (5, 4, 4, 4),
    (9, 4, 4, 4),
    (65, 4, 4, 4),
    (65, 64, 64, 16),
    (1025, 512, 512, 256),
)
"""For asking: blocks; longest text and budget, in blocks; seats."""
SAMPLES = tuple(
    Config(blocks, size, size * longest, size * budget, max_num_seqs=seats)
    for blocks, longest, budget, seats in LIMITS
    for size in (2, 1, 4, 16, 8, 32, 64, 128)
)
"""Sizes that all policies allow: an engine need take only one of them."""

World = tuple[Config, Policy]
Draw = Callable[[Chance], World]
Takes = Callable[[Policy, str, int | float], int | float]
WITH: Callable[..., Policy] = Policy


def anywhere(
    config: Config | None = None, policy: Policy | None = None, sizes: Sizes | None = None
) -> Draw:
    """All worlds, as far as they are not given."""

    def draw(chance: Chance) -> World:
        drawn, choices = draw_world(chance, config, policy)
        resizes = resized(drawn, choices, sizes or {})
        return resizes, policy or fitting(resizes, choices)

    return draw


@frozen
class Worlds:
    """The worlds of one engine, as far as they are not given."""

    bases: tuple[Policy, ...]
    values: Mapping[Policy, Mapping[str, Sequence[object]]]
    """By base, then by axis."""
    speculates: bool
    config: Config | None = None
    policy: Policy | None = None
    sizes: Sizes = field(factory=dict)
    """Those that are given."""
    takes: Takes = field(default=lambda base, name, value: value)
    """The size to have in the place of one that was drawn, by base and name."""

    @staticmethod
    def of(
        subject: Subject,
        config: Config | None = None,
        policy: Policy | None = None,
        bases: Sequence[Policy] = BASES,
        sizes: Sizes | None = None,
    ) -> Worlds:
        """Ask the engine.

        Raises:
            Unsupported: it takes none of the bases, or not the policy that is given.
            EngineError: it is not what it says it is, or cannot be made.
        """
        asked = (policy,) if policy is not None else bases
        taken: dict[Policy, Config] = {}
        refusal: Unsupported | None = None
        problem: ConfigError | None = None
        given = sizes or {}
        for base in asked:
            for sample in SAMPLES if config is None else (config,):
                try:
                    asked_for = resized(sample, base, given)
                    subject.make(Machine(asked_for, base))
                except Unsupported as refused:
                    refusal = refusal or refused
                except ConfigError as contradiction:
                    problem = problem or contradiction
                else:
                    taken[base] = asked_for
                    break
        if not taken:
            if refusal is None and problem is not None:
                raise problem
            raise refusal or Unsupported("no policy goes together with these sizes")
        values = {} if policy else {base: _values(subject, taken[base], base) for base in taken}
        can = subject.capabilities
        speculates = can is None or can.can(Verb.DRAFTS)
        put_back = _putting_back(subject, taken)
        return Worlds(tuple(taken), values, speculates, config, policy, given, put_back)

    def __call__(self, chance: Chance) -> World:
        base = self.policy or pick_base(chance, self.bases)
        policy = self.policy or self._policy(chance, base)
        config = self.config or self._config(chance, base, policy)
        return config, self.policy or fitting(config, policy)

    def _config(self, chance: Chance, base: Policy, policy: Policy) -> Config:
        config = draw_config(chance, policy)
        if not self.speculates:
            config = evolve(config, num_speculative_tokens=0, num_lookahead_tokens=0)
        back: dict[str, int | float] = {}
        for size in fields(Config):
            drawn: int | float = getattr(config, size.name)
            mine = self.takes(base, size.name, drawn)
            if mine != drawn:
                back[size.name] = mine
        return resized(config, policy, {**back, **self.sizes})

    def _policy(self, chance: Chance, base: Policy) -> Policy:
        keep = pick(chance, KEEP)
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


def _putting_back(subject: Subject, taken: Mapping[Policy, Config]) -> Takes:
    """Each size, if the engine takes it with all others being those of the sample that it took, or
    else the sample's. The engine is asked once for each."""

    @cache
    def takes(base: Policy, name: str, value: int | float) -> int | float:
        sample = taken[base]
        usual: int | float = getattr(sample, name)
        try:
            subject.make(Machine(resized(sample, base, {name: value}), base))
        except Unsupported:
            return usual
        except ConfigError:
            return value
        return value

    return takes


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
        try:
            machine = Machine(*draw(chance))
        except ConfigError as contradiction:
            refusal = Unsupported(str(contradiction))
            continue
        alphabet = 2 + chance.below(2)
        try:
            follower = None if following is None else following(machine)
        except Unsupported as refused:
            refusal = refused
            continue
        return Walk(machine, properties, alphabet, follower, pick(chance, NAMINGS))
    raise refusal or Unsupported("no world was drawn")
