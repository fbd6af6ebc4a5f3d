"""The wire protocol of `spec/PROTOCOL.md` as classes.

Theory of operation. A verb is a class of its arguments and a class of its answer (`REQUESTS`,
`ANSWERS`); `servecheck.trace.codec` takes both to JSON and back, strictly. `line` writes one. The
verbs of L2 and L3 are the specification's own actions.
"""

from __future__ import annotations

from typing import Literal

import attrs
from attrs import frozen

from servecheck.engines.protocol import (
    Capabilities,
    Copies,
    Level,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
    Unsupported,
    Verb,
)
from servecheck.strict import Refused
from servecheck.trace.codec import encode
from servespec.actions import Abort, Complete, Discard, ResetCache, Schedule, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy
from servespec.pool import Blocks

VERSION = 1
"""Of the protocol."""
MOST_BYTES = 1 << 24
"""Of a line, its end not counted."""

# --- what is asked; the verbs of L2 and L3 are the specification's actions ----------------------


@frozen
class Hello:
    """Begin, or begin anew: from now on the process is an engine of these sizes and choices."""

    protocol: int
    config: Config
    policy: Policy


@frozen
class Match:
    namespace: Namespace
    text: Tokens
    limit: int


@frozen
class Acquire:
    hits: Blocks


@frozen
class Extend:
    count: int


@frozen
class Publish:
    table: Blocks
    namespace: Namespace
    text: Tokens
    start: int
    stop: int


@frozen
class Release:
    table: Blocks


@frozen
class Clear:
    pass


@frozen
class SeePool:
    pass


@frozen
class SeeState:
    pass


# --- what is answered; a plan is a `SeenPlan` ---------------------------------------------------


@frozen
class Hail:
    """The answer to `hello`: what the engine is, and can do."""

    protocol: int
    name: str
    version: str
    level: Literal["pool", "steps", "state"]
    cannot: tuple[str, ...] | None = None

    @staticmethod
    def of(can: Capabilities) -> Hail:
        level = can.level
        if level is Level.EVENTS:
            raise Unsupported(f"{can.name} has level EVENTS, which has no verbs")
        cannot = tuple(sorted(verb.name.lower() for verb in can.cannot))
        return Hail(VERSION, can.name, can.version, _LEVELS[level], cannot)

    @property
    def capabilities(self) -> Capabilities:
        """What is said here.

        Raises:
            Refused: something in `cannot` is unknown.
        """
        for at, name in enumerate(self.cannot or ()):
            if name not in _VERBS:
                raise Refused(f"expected one of {', '.join(_VERBS)}", path=[at, "cannot"])
        cannot = frozenset(_VERBS[name] for name in self.cannot or ())
        return Capabilities(self.name, self.version, Level[self.level.upper()], cannot)


_LEVELS: dict[Level, Literal["pool", "steps", "state"]] = {
    Level.POOL: "pool",
    Level.STEPS: "steps",
    Level.STATE: "state",
}
_VERBS = {verb.name.lower(): verb for verb in Verb}


@frozen
class Nothing:
    """The answer to a verb that has none."""


@frozen
class Taken:
    blocks: Blocks


@frozen
class Done:
    done: bool
    """False: a legal no, and nothing has changed."""


@frozen
class Carried:
    """`Copies`, whose key has a name that is a text."""

    key: str
    blocks: Blocks


@frozen
class ShownPool:
    """`SeenPool` as it is written."""

    free: Blocks | None = None
    ref_counts: tuple[int, ...] | None = None
    index: tuple[Carried, ...] | None = None

    @property
    def seen(self) -> SeenPool:
        index = None if self.index is None else tuple(Copies(c.key, c.blocks) for c in self.index)
        return SeenPool(self.free, self.ref_counts, index)


@frozen
class ShownState:
    """`SeenState` as it is written."""

    pool: ShownPool | None = None
    running: tuple[SeenRequest, ...] | None = None
    waiting: tuple[SeenRequest, ...] | None = None

    @property
    def seen(self) -> SeenState:
        pool = SeenPool() if self.pool is None else self.pool.seen
        return SeenState(pool, self.running, self.waiting)


@frozen
class Ended:
    id: str
    reason: Reason | None = None


@frozen
class ShownOutcome:
    """`SeenOutcome` as it is written."""

    finished: tuple[Ended, ...]

    @staticmethod
    def of(outcome: SeenOutcome) -> ShownOutcome:
        return ShownOutcome(tuple(Ended(id, reason) for id, reason in outcome.finished))

    @property
    def seen(self) -> SeenOutcome:
        return SeenOutcome(tuple((e.id, e.reason) for e in self.finished))


@frozen
class Declined:
    """An answer to `hello`: the engine cannot have these sizes or choices."""

    unsupported: str


@frozen
class Failed:
    """An answer to any verb."""

    error: str


Request = (
    Hello
    | Match
    | Acquire
    | Extend
    | Publish
    | Release
    | Clear
    | SeePool
    | Submit
    | Schedule
    | Complete
    | Discard
    | Abort
    | ResetCache
    | SeeState
)

REQUESTS: dict[str, type[Request]] = {
    "hello": Hello,
    "match": Match,
    "acquire": Acquire,
    "extend": Extend,
    "publish": Publish,
    "release": Release,
    "clear": Clear,
    "see_pool": SeePool,
    "submit": Submit,
    "schedule": Schedule,
    "complete": Complete,
    "discard": Discard,
    "abort": Abort,
    "reset_cache": ResetCache,
    "see_state": SeeState,
}
NAMES = {kind: verb for verb, kind in REQUESTS.items()}

ANSWERS: dict[str, type] = {
    "hello": Hail,
    "match": Taken,
    "acquire": Nothing,
    "extend": Taken,
    "publish": Nothing,
    "release": Nothing,
    "clear": Done,
    "see_pool": ShownPool,
    "submit": Done,
    "schedule": SeenPlan,
    "complete": ShownOutcome,
    "discard": Nothing,
    "abort": Done,
    "reset_cache": Done,
    "see_state": ShownState,
}


def line(seq: int, said: attrs.AttrsInstance, **more: object) -> bytes:
    """A line that says this; what is None is left out.

    Raises:
        Refused: it has no JSON form.
    """
    fields = attrs.asdict(said, recurse=False, filter=lambda _, value: value is not None)
    return encode({"seq": seq, **more, **fields}) + b"\n"
