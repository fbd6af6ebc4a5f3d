"""The scopes that are searched, by name, and what they are known to count.

Theory of operation. A scope is a machine small enough to be searched to its end: sizes, choices,
what may arrive, what may be sampled. Each one is there for something that it reaches and the others
do not (`servecheck.explore.axes`), and says so. Three sizes of the serving machine: *tiny* for
every change, *small* for a coffee, *standard* for the night. The counts stand beside the scope: a
change of the specification that changes what can be reached must change them too.

`tiny-pool-*` are the cache machine alone, the yardstick that other tools agree on.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import product

from attrs import evolve, frozen

from servecheck.explore.axes import AXES
from servecheck.explore.cache import CacheSystem, EncodedCache, Symmetry, texts
from servecheck.explore.errors import ScopeError
from servecheck.explore.serving import Serving
from servespec.cache import CacheMachine
from servespec.machine import Machine
from servespec.policy import MINIATURE, name_of


@frozen
class Counts:
    """What there is in a scope."""

    states: int
    transitions: int
    depth: int


@frozen
class PoolScope:
    """The cache machine, with texts to allocate."""

    name: str
    about: str
    machine: CacheMachine
    texts: tuple[tuple[int, ...], ...]
    counts: Counts
    raw: Counts | None = None
    """Without symmetry."""

    def system(self, symmetry: Symmetry = Symmetry.SLOTS) -> CacheSystem:
        return CacheSystem(self.machine, self.texts, symmetry)

    def encoded(self, symmetry: Symmetry = Symmetry.SLOTS) -> EncodedCache:
        return EncodedCache(self.machine, self.texts, symmetry)


@frozen
class ServingScope:
    """The whole serving machine, with kinds of requests."""

    name: str
    about: str
    system: Serving
    counts: Counts | None = None


TINY_POOL = CacheMachine(num_blocks=4, block_size=2, num_slots=3, policy=MINIATURE)
SMALL_TEXTS = texts("0 00 01 000 0000 0001 110 1111")
ALL_TEXTS = tuple(text for n in range(1, 5) for text in product((0, 1), repeat=n))

POOLS = (
    PoolScope(
        "tiny-pool-small",
        "4 blocks of 2 tokens, 3 slots, 8 texts",
        TINY_POOL,
        SMALL_TEXTS,
        Counts(1_070, 7_142, 9),
        Counts(78_144, 541_848, 15),
    ),
    PoolScope(
        "tiny-pool-full",
        "4 blocks of 2 tokens, 3 slots, all 30 texts of 1 to 4 tokens",
        TINY_POOL,
        ALL_TEXTS,
        Counts(28_644, 498_172, 9),
        Counts(2_275_656, 40_006_944, 13),
    ),
)


# --- the serving machine -------------------------------------------------------------------


@frozen
class Size:
    """How far a scope of the serving machine goes."""

    live: int
    """Requests alive at once, all of whom may run; more where the axis needs them."""
    blocks: int
    """More blocks than in the sizes of the axis."""
    more: bool = False


PRESETS = {
    "tiny": Size(live=2, blocks=0),
    "small": Size(live=3, blocks=1),
    "standard": Size(live=3, blocks=2, more=True),
}


def serving(preset: str, axis: str) -> ServingScope:
    """One scope of the serving machine."""
    size, what = PRESETS[preset], AXES[axis]
    config = evolve(
        what.config,
        num_blocks=what.config.num_blocks + size.blocks,
        max_num_seqs=max(size.live, what.config.max_num_seqs),
    )
    arriving = what.kinds + (what.more if size.more else ())
    live = max(size.live, what.config.max_num_seqs, what.live)
    if what.seats is not None:
        config = evolve(config, max_num_seqs=what.seats)
    system = Serving(
        Machine(config, what.policy),
        arriving,
        live,
        tokens=what.tokens,
        aborts=what.aborts or preset != "tiny",
        nobody=what.nobody,
        resets=what.resets,
    )
    name = f"serving-{preset}/{axis}"
    return ServingScope(name, what.about, system, COUNTS.get(name))


COUNTS: dict[str, Counts] = {
    "serving-tiny/chunks": Counts(1_255, 6_636, 17),
    "serving-tiny/sampling": Counts(2_925, 10_511, 17),
    "serving-tiny/namespaces": Counts(1_508, 4_960, 16),
    "serving-tiny/drafts": Counts(2_580, 13_144, 14),
    "serving-tiny/priority": Counts(509, 833, 21),
    "serving-tiny/after-step": Counts(1_618, 6_710, 18),
    "serving-tiny/copies": Counts(2_746, 11_481, 21),
    "serving-tiny/prefill-first": Counts(2_296, 9_353, 22),
    "serving-tiny/miniature": Counts(1_352, 4_442, 19),
    "serving-tiny/static": Counts(2_846, 11_731, 21),
    "serving-tiny/reserved": Counts(260, 1_053, 13),
    "serving-tiny/full-prompt": Counts(40, 132, 5),
    "serving-tiny/small-pool": Counts(38, 125, 6),
    "serving-tiny/no-victim": Counts(928, 1_710, 19),
    "serving-tiny/given-back": Counts(10_117, 18_979, 37),
    "serving-tiny/passed-over": Counts(288, 536, 15),
    "serving-tiny/together": Counts(371, 1_530, 13),
    "serving-tiny/draft-budget": Counts(2_572, 7_415, 17),
    "serving-tiny/deadlock": Counts(596, 1_958, 13),
    "serving-tiny/uncut": Counts(86, 283, 9),
    "serving-tiny/edges": Counts(92, 553, 18),
    "serving-tiny/refused": Counts(65, 219, 11),
    "serving-tiny/to-the-tail": Counts(476, 848, 16),
    "serving-tiny/seats-end": Counts(83, 138, 15),
    "serving-tiny/last-of-priority": Counts(544, 908, 24),
    "serving-tiny/two-tenants": Counts(1_049, 1_843, 19),
    "serving-tiny/deferred": Counts(2_543, 11_155, 14),
    "serving-tiny/two-drafts": Counts(120, 474, 14),
    "serving-small/chunks": Counts(9_960, 62_069, 22),
    "serving-small/sampling": Counts(49_229, 230_490, 20),
    "serving-small/namespaces": Counts(11_072, 46_862, 21),
    "serving-small/after-step": Counts(15_536, 80_007, 22),
    "serving-small/copies": Counts(48_236, 251_704, 30),
    "serving-small/prefill-first": Counts(40_335, 205_072, 33),
    "serving-small/miniature": Counts(23_809, 101_040, 24),
    "serving-small/static": Counts(39_166, 201_107, 26),
    "serving-small/reserved": Counts(1_736, 8_905, 14),
    "serving-small/drafts": Counts(31_927, 244_947, 24),
    "serving-small/full-prompt": Counts(144, 610, 10),
    "serving-small/small-pool": Counts(237, 999, 10),
    "serving-small/no-victim": Counts(46_185, 195_178, 25),
    "serving-small/passed-over": Counts(3_083, 13_019, 17),
    "serving-small/together": Counts(2_606, 13_429, 16),
    "serving-small/draft-budget": Counts(74_158, 349_149, 28),
    "serving-small/deadlock": Counts(3_414, 14_462, 15),
    "serving-small/uncut": Counts(394, 1_659, 13),
    "serving-small/edges": Counts(174, 1_214, 24),
    "serving-small/refused": Counts(7_375, 31_334, 21),
    "serving-small/to-the-tail": Counts(8_261, 34_962, 16),
    "serving-small/seats-end": Counts(536, 1_828, 18),
    "serving-small/last-of-priority": Counts(8_205, 34_822, 27),
    "serving-small/deferred": Counts(72_164, 395_419, 21),
    "serving-small/two-drafts": Counts(578, 2_764, 18),
    "serving-small/two-tenants": Counts(43_556, 184_162, 27),
    "serving-standard/chunks": Counts(161_969, 1_057_106, 25),
    "serving-standard/sampling": Counts(163_935, 767_660, 25),
}

Scope = PoolScope | ServingScope


def scopes() -> dict[str, Scope]:
    """All scopes by name."""
    found: dict[str, Scope] = {scope.name: scope for scope in POOLS}
    for preset, axis in product(PRESETS, AXES):
        scope = serving(preset, axis)
        if scope.counts is not None:  # the others have not been counted yet
            found[scope.name] = scope
    return found


HEAVY = frozenset(f"serving-tiny/{name}" for name, axis in AXES.items() if axis.heavy)
"""Tiny scopes that are not searched with the others."""

DEFAULT = ("tiny-pool-small", "serving-tiny")
"""What is searched if nothing is named."""


def profile_of(scope: Scope) -> str:
    """The name of the policy of a scope, "other" if it has none."""
    machine = scope.machine if isinstance(scope, PoolScope) else scope.system.machine
    return name_of(machine.policy) or "other"


def named(name: str) -> tuple[Scope, ...]:
    """The scopes that a name stands for: itself, or all that begin with it and a slash.

    Raises:
        ScopeError: no scope is called so.
    """
    known = scopes()
    if name in known:
        return (known[name],)
    group = tuple(
        scope
        for full, scope in known.items()
        if full.startswith(f"{name}/") and not (name == "serving-tiny" and full in HEAVY)
    )
    if group:
        return group
    groups = dict.fromkeys(full.split("/")[0] for full in known)
    near = get_close_matches(name, (*groups, *known), n=3) or list(groups)
    raise ScopeError(f"no scope is called {name!r}", f"choose of {', '.join(near)}")
