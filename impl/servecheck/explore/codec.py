"""A serving state as a canonical key of some hundred bytes, and back.

Theory of operation. A state is walked once, in a fixed order: running requests, waiting requests,
plans in flight, the free queue, the blocks, the index. A name is replaced by the number of its
first appearance on this walk:

* blocks: every usable block is in a table or in the free queue, so all get a number;
* requests: by their place, running first, then waiting; who has left is nobody;
* tokens and namespaces: only where the scope says that their names carry no meaning.

So states that differ by names only have one key, and reading a key gives the representative of all
of them. Nothing else is reordered: the running list, the waiting queue, the rank of arrival, the
free queue and the copies in the index are part of what the state is.

Numbers stand in one byte each, links of chains once each, in order of appearance.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from servecheck.explore.errors import ScopeError
from servespec.chain import Chain, Namespace, Token, Tokens, link
from servespec.config import Config
from servespec.plan import Plan, Planned, State
from servespec.policy import Policy
from servespec.pool import Block, Blocks, Index, Pool
from servespec.properties import Renaming
from servespec.request import Request, with_output

NOBODY = ""
"""The id of who has left, in a plan in flight."""


@frozen
class Names:
    """Which names carry no meaning, and what the others are."""

    namespaces: tuple[Namespace, ...]
    """All that occur; a key holds their numbers."""
    ids: tuple[str, ...]
    """Of the representative's requests, by place."""
    any_token: bool = False
    """Tokens may be renamed."""
    any_namespace: bool = False
    """Namespaces may be renamed."""


@frozen
class Codec:
    """Keys of the states of one machine."""

    config: Config
    policy: Policy
    names: Names

    def key(self, state: State) -> bytes:
        """The canonical key of a state.

        Raises:
            ScopeError: a number does not fit into a byte.
        """
        return self._walked(state).key()

    def named(self, state: State) -> tuple[bytes, Renaming]:
        """The key of a state, and the names of everything in its representative."""
        walk = self._walked(state)
        ids = dict(zip((r.id for r in state.live), self.names.ids, strict=False))
        spaces = self.names.namespaces
        namespaces = {n: spaces[i] for n, i in walk.namespaces.items() if n != spaces[i]}
        tokens = {t: number for t, number in walk.tokens.items() if t != number}
        return walk.key(), Renaming(walk.blocks, ids, tokens, namespaces)

    def _walked(self, state: State) -> _Writer:
        walk = _Writer(self.policy.first_block, self.names)
        walk.state(state)
        return walk

    def state(self, key: bytes) -> State:
        """The representative of a key."""
        return _Reader(self, key).state()


# --- writing -------------------------------------------------------------------------------


@define
class _Writer:
    first_block: int
    names: Names
    out: list[int] = field(factory=list)
    links: list[int] = field(factory=list)
    blocks: dict[int, int] = field(factory=dict)
    tokens: dict[Token, int] = field(factory=dict)
    namespaces: dict[Namespace, int] = field(factory=dict)
    _chains: dict[Chain | None, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for block in range(self.first_block):
            self.blocks[block] = block
        self._chains[None] = 0
        if not self.names.any_namespace:
            self.namespaces.update((n, i) for i, n in enumerate(self.names.namespaces))

    def key(self) -> bytes:
        try:
            return bytes((len(self.links) >> 8, len(self.links) & 255, *self.links, *self.out))
        except ValueError as error:
            raise ScopeError(
                "a number of this scope does not lie in 0 to 255", "search a smaller scope"
            ) from error

    def state(self, state: State) -> None:
        pool, place = state.pool, {r.id: i for i, r in enumerate(state.live, 1)}
        self.out += (len(state.running), len(state.waiting), len(state.in_flight))
        for request in state.live:
            self._request(request)
        for plan in state.in_flight:
            self.out += (len(plan.entries), len(plan.deferred))
            for entry in plan.entries:
                self.out.append(0 if entry.cancelled else place[entry.id])
                self._entry(entry)
            for table in plan.deferred:
                self._table(table)
        self._table(pool.free)
        # What stands nowhere has leaked: it is told too, or a search would not see it.
        for block in range(len(pool.blocks)):
            self._block(block)
        for block in self.blocks:
            self._content(pool.blocks[block])
        copies = sorted((self._chain(key), held) for key, held in pool.index.copies.items())
        self.out.append(len(copies))
        for number, held in copies:
            self.out.append(number)
            self._table(held)

    def _request(self, r: Request) -> None:
        self.out.append(self._namespace(r.namespace))
        self._text(r.prompt)
        self._text(r.output)
        self._text(r.stop)
        self._text(r.drafts)
        self._table(r.table)
        self.out += (r.max_tokens, r.priority, r.arrival, r.computed, r.published, r.prefilling)

    def _entry(self, e: Planned) -> None:
        self.out.append(self._namespace(e.namespace))
        self._text(e.tokens)
        self._text(e.drafts)
        self._table(e.table)
        self.out += (e.start, e.new_blocks, e.yields, e.admitted, e.was_prefilling)

    def _content(self, block: Block) -> None:
        self.out += (block.ref_count, self._chain(block.key), len(block.content))
        self.out += [self._chain(slot) for slot in block.content]

    def _table(self, table: Blocks) -> None:
        self.out.append(len(table))
        self.out += [self._block(block) for block in table]

    def _block(self, block: int) -> int:
        return self.blocks.setdefault(block, len(self.blocks))

    def _text(self, text: Tokens) -> None:
        self.out.append(len(text))
        self.out += [self._token(token) for token in text]

    def _token(self, token: Token) -> int:
        """Padding is 0, a token one more than its number."""
        if token < 0 or not self.names.any_token:
            return token + 1
        return self.tokens.setdefault(token, len(self.tokens)) + 1

    def _namespace(self, namespace: Namespace) -> int:
        return self.namespaces.setdefault(namespace, len(self.namespaces))

    def _chain(self, chain: Chain | None) -> int:
        number = self._chains.get(chain)
        if number is not None or chain is None:
            return number or 0
        unknown = [chain]
        while unknown[-1].parent not in self._chains:
            parent = unknown[-1].parent
            if parent is not None:
                unknown.append(parent)
        for node in reversed(unknown):
            self.links += (self._chains[node.parent], self._namespace(node.namespace))
            self.links.append(len(node.tokens))
            self.links += [self._token(token) for token in node.tokens]
            self._chains[node] = len(self._chains)
        return self._chains[chain]


# --- reading -------------------------------------------------------------------------------


class _Reader:
    def __init__(self, codec: Codec, key: bytes) -> None:
        self.codec = codec
        self._numbers = iter(key)
        self._chains: list[Chain | None] = [None]
        left = (self._next() << 8) + self._next()
        while left > 0:
            parent = self._chains[self._next()]
            namespace = self._namespace()
            tokens = self._text()
            self._chains.append(link(namespace, parent, tokens))
            left -= 3 + len(tokens)

    def state(self) -> State:
        running, waiting, plans = self._next(), self._next(), self._next()
        live = tuple(self._request(i) for i in range(running + waiting))
        in_flight = tuple(self._plan(live) for _ in range(plans))
        free = self._table()
        blocks = tuple(self._block() for _ in range(self.codec.config.num_blocks))
        copies = {}
        for _ in range(self._next()):
            key = self._chains[self._next()]
            held = self._table()
            if key is not None:
                copies[key] = held
        pool = Pool(blocks, free, Index(copies))
        return State(pool, live[running:], live[:running], in_flight)

    def _request(self, place: int) -> Request:
        namespace = self._namespace()
        prompt, output, stop, drafts = self._text(), self._text(), self._text(), self._text()
        table = self._table()
        most, priority, arrival, computed, published = (self._next() for _ in range(5))
        bare = Request(
            self.codec.names.ids[place],
            namespace,
            prompt,
            most,
            priority,
            stop,
            arrival,
            (),
            (),
            computed,
            table,
            published,
            drafts,
            bool(self._next()),
        )
        return with_output(bare, output, self.codec.config, self.codec.policy)

    def _plan(self, live: Sequence[Request]) -> Plan:
        entries, deferred = self._next(), self._next()
        return Plan(
            tuple(self._entry(live) for _ in range(entries)),
            tuple(self._table() for _ in range(deferred)),
        )

    def _entry(self, live: Sequence[Request]) -> Planned:
        place = self._next()
        namespace = self._namespace()
        tokens, drafts, table = self._text(), self._text(), self._table()
        start, new_blocks, yields, admitted, prefilling = (self._next() for _ in range(5))
        return Planned(
            live[place - 1].id if place else NOBODY,
            namespace,
            start,
            tokens,
            drafts,
            table,
            new_blocks,
            bool(yields),
            bool(admitted),
            bool(prefilling),
            cancelled=not place,
        )

    def _block(self) -> Block:
        held, key, written = self._next(), self._chains[self._next()], self._next()
        return Block(held, key, tuple(self._chains[self._next()] for _ in range(written)))

    def _namespace(self) -> Namespace:
        return self.codec.names.namespaces[self._next()]

    def _table(self) -> Blocks:
        return tuple(self._next() for _ in range(self._next()))

    def _text(self) -> Tokens:
        return tuple(self._next() - 1 for _ in range(self._next()))

    def _next(self) -> int:
        return next(self._numbers)
