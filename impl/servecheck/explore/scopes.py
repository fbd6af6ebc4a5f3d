"""The scopes that are searched, by name, and what they are known to count.

Theory of operation. A scope is a machine small enough to be searched to its end: sizes, choices,
what may arrive, what may be sampled. Each one is there for something that it reaches and the others
do not, and says so. Three sizes of the serving machine: *tiny* for every change, *small* for a
coffee, *standard* for the night. The counts stand beside the scope: a change of the specification
that changes what can be reached must change them too.

`tiny-pool-*` are the cache machine alone, the yardstick that other tools agree on.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import product

from attrs import evolve, frozen

from servecheck.explore.cache import CacheSystem, EncodedCache, Symmetry, texts
from servecheck.explore.errors import ScopeError
from servecheck.explore.serving import Serving
from servespec.actions import Submit
from servespec.cache import CacheMachine
from servespec.chain import PUBLIC, Namespace
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    FreeWalk,
    HeadOfLine,
    HitCap,
    Lookup,
    Policy,
    Publish,
    Readmission,
    Release,
    Sharing,
    StepMix,
    Victim,
    name_of,
    prioritised,
)


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


def kind(prompt: str, max_tokens: int, namespace: Namespace = PUBLIC, priority: int = 0) -> Submit:
    """A kind of request; its prompt is spelled in one-digit tokens."""
    (spelled,) = texts(prompt)
    return Submit("", spelled, max_tokens, namespace, priority)


ALICE, BOB = Namespace("a", "bc"), Namespace("ab", "c")
"""They spell the same."""
SIZES = Config(
    num_blocks=4, block_size=2, max_model_len=6, max_num_batched_tokens=3, max_num_seqs=2
)
NO_CHUNKS = evolve(SIZES, max_num_batched_tokens=6)
AFTER_STEP = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)


@frozen
class Axis:
    """What a scope is there for."""

    about: str
    policy: Policy
    kinds: tuple[Submit, ...]
    config: Config = SIZES
    more: tuple[Submit, ...] = ()
    """Kinds that only the standard size has."""
    tokens: tuple[int, ...] = (0,)
    resets: tuple[bool, ...] = ()
    aborts: bool = True
    """In the tiny size; larger ones always have them."""
    nobody: bool = False
    """Somebody who is not there may be aborted, too."""
    live: int = 2
    seats: int | None = None
    """If fewer may run than live."""
    heavy: bool = False
    """Too many states for a group of tiny scopes: only by its full name, or larger."""


AXES = {
    "chunks": Axis(
        "prompts cut into chunks, shared prefixes, preemption inside a chunk, resets",
        VLLM_0_33,
        (kind("01", 2), kind("010", 2)),
        more=(kind("0101", 2),),
        resets=(False, True),
    ),
    "sampling": Axis(
        "what is sampled decides what is shared",
        VLLM_0_33,
        (kind("01", 2), kind("0", 3)),
        tokens=(0, 1),
    ),
    "namespaces": Axis(
        "the same texts in two namespaces, and a prefix in both",
        VLLM_0_33,
        (kind("01", 2, ALICE), kind("01", 2, BOB)),
        more=(kind("010", 2, ALICE),),
    ),
    "drafts": Axis(
        "one draft a step, right and wrong",
        VLLM_0_33,
        (kind("00", 3),),
        evolve(
            SIZES,
            max_num_batched_tokens=4,
            long_prefill_token_threshold=2,
            num_speculative_tokens=1,
        ),
        more=(kind("0000", 1),),
        tokens=(0, 1),
    ),
    "priority": Axis(
        "victims by priority, scheduled ones among them",
        prioritised(VLLM_0_33),
        (kind("0", 2, PUBLIC, 0), kind("0000000", 1, PUBLIC, 1)),
        Config(9, 1, 8, 3, 2, long_prefill_token_threshold=2),
        aborts=False,
    ),
    "after-step": Axis(
        "blocks are published when they are written, and steps are discarded",
        AFTER_STEP,
        (kind("01", 2), kind("010", 2)),
    ),
    "copies": Axis(
        "several copies of one key, the newest answers",
        evolve(AFTER_STEP, lookup=Lookup.NEWEST, hit_cap=HitCap.NONE, head_of_line=HeadOfLine.SKIP),
        (kind("00", 2), kind("0001", 2)),
    ),
    "prefill-first": Axis(
        "a step that admits does nothing else",
        evolve(AFTER_STEP, step_mix=StepMix.PREFILL_FIRST),
        (kind("00", 1), kind("01", 2)),
    ),
    "miniature": Axis("the article's loop", MINIATURE, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "static": Axis("static batches", STATIC, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "reserved": Axis("reserved memory", RESERVED, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "full-prompt": Axis(
        "a prompt that fills the model, which is queued and can never be served",
        VLLM_0_33,
        (kind("00", 1), kind("0", 1)),
        Config(2, 2, 2, 1, 1),
    ),
    "small-pool": Axis(
        "a request that needs more blocks than there are, which is queued all the same",
        VLLM_0_33,
        (kind("00", 1), kind("0", 1)),
        Config(2, 1, 3, 1, 1),
    ),
    "no-victim": Axis(
        "nobody is preempted, so whoever finds no room waits in its place",
        evolve(VLLM_0_33, victim=Victim.NONE),
        (kind("0100", 2), kind("00000000", 1)),
        Config(7, 2, 9, 6, 3),
        aborts=False,
    ),
    "given-back": Axis(
        "victims by priority, and admissions with the tokens that they give back",
        evolve(
            prioritised(VLLM_0_33),
            admission=Admission.STEP,
            after_preemption=AfterPreemption.GO_ON,
        ),
        (kind("01000000", 2, priority=1), kind("000000", 1), kind("000", 2)),
        Config(7, 2, 10, 3, 3),
        aborts=False,
        heavy=True,
    ),
    "passed-over": Axis(
        "a head of the queue that finds no room is passed over",
        evolve(VLLM_0_33, head_of_line=HeadOfLine.SKIP),
        (kind("00", 1), kind("0", 2)),
        Config(4, 1, 4, 2, 3),
        aborts=False,
    ),
    "together": Axis(
        "two arrive together, so none is worse, and both prompts are cut into chunks",
        evolve(prioritised(VLLM_0_33), admission=Admission.STEP, sharing=Sharing.OFF),
        (kind("0000", 1), evolve(kind("0000", 1), with_last=True)),
        Config(5, 1, 6, 2, 2, long_prefill_token_threshold=1),
    ),
    "draft-budget": Axis(
        "the drafts of those in front use up the budget of those behind",
        VLLM_0_33,
        (kind("0", 2), kind("0000", 1)),
        Config(6, 2, 5, 4, 3, long_prefill_token_threshold=2, num_speculative_tokens=1),
        aborts=False,
    ),
    "deadlock": Axis(
        "nobody is preempted, and two want the block that the other one holds",
        evolve(MINIATURE, victim=Victim.NONE),
        (kind("0", 2), kind("1", 2)),
        Config(2, 1, 3, 2, 2),
    ),
    "uncut": Axis(
        "prompts are not cut into chunks, and some are longer than a pass",
        evolve(VLLM_0_33, chunked_prefill=False),
        (kind("00", 1), kind("0", 1)),
        Config(3, 1, 3, 1, 1),
    ),
    "edges": Axis(
        "one seat, stop tokens among drafts, a prompt that is too long, aborts of nobody",
        VLLM_0_33,
        (evolve(kind("0", 2), stop=(1,)), kind("0000000", 1)),
        evolve(SIZES, num_speculative_tokens=1),
        tokens=(0, 1),
        nobody=True,
        seats=1,
    ),
    "refused": Axis(
        "a request that can never fit is turned away",
        MINIATURE,
        (kind("00", 2), kind("00000", 4)),
        Config(3, 2, 10, 10, 2),
    ),
    "to-the-tail": Axis(
        "whoever is preempted waits behind the others",
        evolve(VLLM_0_33, readmission=Readmission.TAIL, admission=Admission.STEP),
        (kind("0", 2), kind("00", 2)),
        Config(4, 1, 4, 4, 3),
        aborts=False,
        live=3,
    ),
    "last-of-priority": Axis(
        "the queue is ordered by priority, victims are the last admitted",
        evolve(prioritised(VLLM_0_33), victim=Victim.LAST_ADMITTED, admission=Admission.STEP),
        (kind("0", 3, PUBLIC, 0), kind("0", 3, PUBLIC, 1)),
        Config(4, 1, 4, 3, 3),
        aborts=False,
    ),
    "deferred": Axis(
        "tables are held until the step in flight is done, freed from their first block, and some "
        "blocks stay free",
        evolve(AFTER_STEP, release=Release.DEFERRED, free_walk=FreeWalk.HEAD_FIRST),
        (kind("0", 1), kind("01", 2), kind("0101", 1)),
        evolve(SIZES, max_num_batched_tokens=4, watermark=0.25),
    ),
    "two-drafts": Axis(
        "two drafts a step, of which one may be right, and slots taken ahead of them",
        VLLM_0_33,
        (kind("0", 3),),
        evolve(SIZES, num_speculative_tokens=2, num_lookahead_tokens=2),
    ),
    "two-tenants": Axis(
        "three run, and the tokens that a victim gives back admit somebody of another namespace",
        evolve(prioritised(VLLM_0_33), after_preemption=AfterPreemption.GO_ON),
        (kind("0", 3, ALICE, 0), kind("0", 3, BOB, 1)),
        Config(5, 1, 4, 2, 3),
        aborts=False,
    ),
}


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
