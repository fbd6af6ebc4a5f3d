"""What an engine must offer to be checked, by level, and what it says that it cannot show.

Theory of operation. Engines show themselves to different depths:

* **L0, events**: it tells what happens to its cache, and nothing else can be asked;
* **L1, pool**: its block pool can be driven by the verbs of `servespec.pool`; the specification's
  scheduler decides, the engine's pool moves;
* **L2, steps**: it schedules itself; its plans and its outcomes can be read;
* **L3, state**: between two actions, what it holds can be read too.

An engine is an object with the methods of its level; nothing is inherited. What it cannot do or
show is said in its `Capabilities`, or left None in what it shows: then that is *undetermined*,
never passed. Keys are opaque here: what must agree is which blocks carry equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum, IntEnum
from typing import Protocol, runtime_checkable

from attrs import field, frozen

from servespec.actions import Output, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import Policy
from servespec.pool import Blocks

KeyName = Hashable
"""How an engine names the content of a full block; equal names stand for equal content."""


class Level(IntEnum):
    """How deep an engine can be looked into."""

    EVENTS = 0
    POOL = 1
    STEPS = 2
    STATE = 3


class Verb(Enum):
    """What an engine may be unable to do. The program that drives it then leaves it out."""

    DISCARD = "discard a planned step"
    ABORT = "abort a request"
    ABORT_IN_FLIGHT = "abort a request while a step is in flight"
    RESET = "reset the cache"
    RESET_PREEMPTING = "reset the cache, preempting what runs"
    DRAFTS = "speculate"
    ADAPTERS = "tell requests of different adapters apart"
    SALTS = "tell requests of different salts apart"
    STOP_TOKENS = "end a request by a token"


@frozen
class Capabilities:
    """What an engine is, and what it can do."""

    name: str
    version: str
    level: Level
    cannot: frozenset[Verb] = frozenset()

    def can(self, verb: Verb) -> bool:
        return verb not in self.cannot


@frozen
class Copies:
    """A key, and the blocks that carry it, the oldest first."""

    key: KeyName
    blocks: Blocks


@frozen
class SeenPool:
    """What a pool shows. None: it cannot be seen."""

    free: Blocks | None = None
    """The free queue, head first."""
    ref_counts: tuple[int, ...] | None = None
    """By block number; the null block's is not compared."""
    index: tuple[Copies, ...] | None = None


@frozen
class SeenRequest:
    """What is shown of one live request. None: it cannot be seen."""

    id: str
    computed: int | None = None
    length: int | None = None
    table: Blocks | None = None
    drafts: Tokens | None = None


@frozen
class SeenState:
    """What an engine shows between two actions."""

    pool: SeenPool = field(factory=SeenPool)
    running: tuple[SeenRequest, ...] | None = None
    """In the engine's order."""
    waiting: tuple[SeenRequest, ...] | None = None
    """In serving order."""


@frozen
class SeenEntry:
    """One scheduled request: its first position, how many tokens, and what else can be seen."""

    id: str
    start: int
    tokens: int
    drafts: Tokens | None = None
    table: Blocks | None = None


@frozen
class SeenPlan:
    """A plan: entries in order of scheduling, and who was preempted, in order."""

    entries: tuple[SeenEntry, ...]
    preempted: tuple[str, ...] | None = None


@frozen
class SeenOutcome:
    """Who ended with an outcome, and why (None: the engine does not say)."""

    finished: tuple[tuple[str, Reason | None], ...]


@runtime_checkable
class Engine(Protocol):
    """Every engine says what it is."""

    @property
    def capabilities(self) -> Capabilities: ...


@runtime_checkable
class PoolEngine(Engine, Protocol):
    """L1: a block pool."""

    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        """The blocks of the longest cached prefix, at most `limit` full blocks."""
        ...

    def acquire(self, hits: Blocks) -> None: ...

    def extend(self, count: int) -> Blocks:
        """Take blocks from the free queue; `count` of them are free."""
        ...

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        """Blocks start … stop-1 of a table are full of `text` from now on, and can be found."""
        ...

    def release(self, table: Blocks) -> None:
        """A table, first block first, is let go."""
        ...

    def clear(self) -> bool:
        """Forget what is cached; False if blocks are held, and then nothing changes."""
        ...

    def see_pool(self) -> SeenPool: ...


@runtime_checkable
class StepEngine(Engine, Protocol):
    """L2: a serving loop that schedules itself."""

    def submit(self, request: Submit) -> bool:
        """False: the engine refuses it, and nothing changes."""
        ...

    def schedule(self) -> SeenPlan: ...

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        """Outputs of the requests in the oldest plan; those that have left are not among them."""
        ...

    def discard(self) -> None: ...

    def abort(self, request_id: str) -> bool:
        """False: nobody has this id, and nothing changes."""
        ...

    def reset_cache(self, preempt_running: bool) -> bool:
        """False: refused, and nothing changes."""
        ...


@runtime_checkable
class StateEngine(StepEngine, Protocol):
    """L3: a serving loop whose state can be read."""

    def see_state(self) -> SeenState: ...


AnyEngine = PoolEngine | StepEngine | StateEngine

EngineFactory = Callable[[Config, Policy], AnyEngine]
"""Builds an engine of these sizes and choices. It raises `Unsupported` for what it cannot be."""


class EngineError(Exception):
    """An engine that cannot be driven: it is not what it says it is, or it is gone."""


class EngineGone(EngineError):
    """An engine that died, hung, or answers nonsense: what it would have done, nobody knows."""


class Unsupported(EngineError):
    """An engine cannot have these sizes or choices; the message says which and why."""
