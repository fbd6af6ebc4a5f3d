"""The books that the fold of a transition keeps, and what they say at a moment."""

from __future__ import annotations

from itertools import chain

from attrs import define, frozen

from servespec.chain import Chain, Tokens
from servespec.events import Event
from servespec.plan import Planned, State
from servespec.policy import Policy, Unhashed
from servespec.pool import Blocks
from servespec.properties import readings
from servespec.properties.base import holders
from servespec.request import Request


@frozen
class Moment:
    """One event, and what stood in the books just before it."""

    event: Event
    queue: Blocks
    index: dict[Chain, Blocks]
    waiting: tuple[Request, ...]
    running: tuple[Request, ...]
    hits: int
    """Of an admission: how many blocks of its table it shares."""
    left: int
    """Tokens that the pass has left for whoever has its turn."""
    served: tuple[Planned, ...]
    """Who is scheduled so far."""
    passed: tuple[str, ...]
    """Who has had its turn so far."""
    preempted: bool
    """Somebody gave way already."""

    @property
    def turn(self) -> Request | None:
        """The running request whose turn it is."""
        return next((r for r in self.running if r.id not in self.passed), None)

    def find(self, request_id: str) -> Request | None:
        live = chain(self.running, self.waiting)
        return next((r for r in live if r.id == request_id), None)


@define
class BlockBooks:
    """Where each block is, and what can be found: a pool without blocks."""

    policy: Policy
    queue: list[int]
    index: dict[Chain, Blocks]
    hashed: set[int]
    """Blocks that have a key."""
    held: dict[int, int]

    @staticmethod
    def of(policy: Policy, state: State) -> BlockBooks:
        """The books of a state."""
        pool = state.pool
        return BlockBooks(
            policy,
            list(pool.free),
            {**pool.index.copies},
            {b for b, block in enumerate(pool.blocks) if block.key is not None},
            holders(state),
        )

    def hold(self, table: Blocks) -> None:
        """One more table holds these."""
        if table:
            for b in table:
                self.held[b] = self.held.get(b, 0) + 1
            self.queue = [b for b in self.queue if b not in table]

    def store(self, block: int, key: Chain) -> None:
        """A block can be found by this key, behind its older copies."""
        self.hashed.add(block)
        self.index = {**self.index, key: (*self.index.get(key, ()), block)}

    def forget(self, block: int, key: Chain) -> None:
        """A block can be found by this key no more."""
        self.hashed.discard(block)
        rest = tuple(b for b in self.index.get(key, ()) if b != block)
        self.index = {**self.index, key: rest}
        if not rest:
            del self.index[key]

    def clear(self) -> None:
        """Nothing can be found."""
        self.hashed.clear()
        self.index = {}

    def release(self, table: Blocks) -> None:
        """LRU-3: [un-hashed, by policy] + old order + [hashed, in the order of the walk]."""
        walk = readings.let_go(self.policy, table)
        for b in walk:
            self.held[b] -= 1
        freed = [b for b in walk if self.held[b] == 0]
        to_head = self.policy.unhashed is Unhashed.TO_HEAD
        first = [b for b in freed if to_head and b not in self.hashed]
        self.queue = first + self.queue + [b for b in freed if b not in first]


def changed(
    r: Request,
    *,
    computed: int,
    table: Blocks,
    published: int,
    drafts: Tokens = (),
    prefilling: bool = True,
    output: Tokens | None = None,
) -> Request:
    """A request with other books; without drafts, and prefilling, if nothing else is said."""
    return Request(
        r.id,
        r.namespace,
        r.prompt,
        r.max_tokens,
        r.priority,
        r.stop,
        r.arrival,
        r.keys,
        r.output if output is None else output,
        computed,
        table,
        published,
        drafts,
        prefilling,
    )
