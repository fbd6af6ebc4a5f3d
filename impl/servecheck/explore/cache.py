"""The cache machine as systems that can be searched: as it is written, and encoded.

Theory of operation. `CacheSystem` is `servespec.cache` itself over the texts of a scope, up to one
of three symmetries: none, blocks renamed, slots reordered besides. `EncodedCache` is the same
machine over nested tuples of small numbers, made for speed. A state of it is

    (slots, free queue, name of each block, order of the copies)

where a slot is the number of its text and its block table, a name is the number of a key among the
keys of the scope, 0 if there is none, and the order is told only of keys that several blocks carry.
A test shows on every state of a scope that the two commute: what is encoded and then moved is what
is moved and then encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import chain, permutations

from attrs import define, field, frozen

from servespec.cache import (
    IDLE,
    Allocate,
    Cache,
    CacheAction,
    CacheMachine,
    CacheTransition,
    Free,
    Slot,
)
from servespec.chain import Chain, Tokens
from servespec.config import blocks_for
from servespec.policy import copy_found, goes_to_head, hit_limit, release_walk
from servespec.pool import Block, Blocks, Index, Pool


class Symmetry(Enum):
    """Which states are the same."""

    NONE = "none"
    BLOCKS = "blocks renamed"
    SLOTS = "blocks renamed, slots reordered"


def texts(spelled: str) -> tuple[Tokens, ...]:
    """Texts of one-digit tokens, spelled one after the other."""
    return tuple(tuple(map(int, text)) for text in spelled.split())


@frozen
class CacheSystem:
    """The cache machine of the specification, with texts to allocate."""

    machine: CacheMachine
    texts: tuple[Tokens, ...]
    symmetry: Symmetry = Symmetry.SLOTS

    def initial(self) -> Cache:
        return self.machine.initial()

    def enabled(self, state: Cache) -> Iterator[CacheAction]:
        return self.machine.enabled(state, self.texts)

    def apply(self, state: Cache, action: CacheAction) -> CacheTransition:
        return self.machine.apply(state, action)

    def canonical(self, state: Cache) -> Cache:
        if self.symmetry is Symmetry.NONE:
            return state
        if self.symmetry is Symmetry.BLOCKS:
            return by_appearance(state)
        orders = permutations(state.slots)
        return min((by_appearance(Cache(state.pool, slots)) for slots in orders), key=in_full)

    def restore(self, key: Cache) -> Cache:
        return key


def renamed(state: Cache, order: Blocks) -> Cache:
    """The same cache, block `order[i]` being called i."""
    name = {block: i for i, block in enumerate(order)}
    copies = state.pool.index.copies.items()
    pool = Pool(
        tuple(state.pool.blocks[block] for block in order),
        tuple(name[block] for block in state.pool.free),
        Index({key: tuple(name[block] for block in blocks) for key, blocks in copies}),
    )
    return Cache(pool, tuple(_renamed_slot(slot, name) for slot in state.slots))


def _renamed_slot(slot: Slot, name: Mapping[int, int]) -> Slot:
    return Slot(slot.text, tuple(name[block] for block in slot.table), slot.namespace)


def by_appearance(state: Cache) -> Cache:
    """Blocks numbered as they appear in the tables, slot by slot, and then in the free queue: every
    block that can be handed out is in one or the other."""
    tables = (slot.table for slot in state.slots)
    seen = dict.fromkeys(chain(*tables, state.pool.free))
    null = (block for block in range(len(state.pool.blocks)) if block not in seen)
    return renamed(state, (*null, *seen))


def in_full(state: Cache) -> tuple[object, ...]:
    """All that a cache is, in an order of its own."""
    spelled = tuple(() if b.key is None else b.key.runs() for b in state.pool.blocks)
    copies = state.pool.index.copies.items()
    order = sorted((key.runs(), blocks) for key, blocks in copies)
    slots = [(slot.text, slot.table) for slot in state.slots]
    return slots, state.pool.free, spelled, order


# --- encoded -------------------------------------------------------------------------------

Names = tuple[int, ...]
Order = tuple[tuple[int, Blocks], ...]
Slots = tuple[tuple[int, Blocks], ...]
Code = tuple[Slots, Blocks, Names, Order]
FREE: tuple[int, Blocks] = (-1, ())


@define
class CodeMoved:
    """An encoded state, moved."""

    state: Code


@frozen
class _Text:
    """What is the same in every state about a text."""

    names: Names
    """Of the keys of its full blocks."""
    limit: int
    """Most blocks that it may share."""
    blocks: int


@frozen
class EncodedCache:
    """The cache machine over numbers. An action is the number of a text to allocate, or −1 − the
    slot to free."""

    machine: CacheMachine
    texts: tuple[Tokens, ...]
    symmetry: Symmetry = Symmetry.SLOTS
    _names: dict[Chain, int] = field(init=False, factory=dict, eq=False, repr=False)
    _texts: tuple[_Text, ...] = field(init=False, eq=False, repr=False)
    _to_head: tuple[bool, bool] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        machine, policy = self.machine, self.machine.policy
        for text in self.texts:
            for key in machine.keys(Allocate(text)):
                self._names.setdefault(key, len(self._names) + 1)
        object.__setattr__(self, "_texts", tuple(map(self._text, self.texts)))
        heads = (goes_to_head(policy, False), goes_to_head(policy, True))
        object.__setattr__(self, "_to_head", heads)

    def _text(self, text: Tokens) -> _Text:
        names = tuple(self._names[key] for key in self.machine.keys(Allocate(text)))
        size = self.machine.block_size
        limit = min(hit_limit(self.machine.policy, len(text), size), len(names))
        return _Text(names, limit, blocks_for(len(text), size))

    def initial(self) -> Code:
        return self.encode(self.machine.initial())

    def encode(self, state: Cache) -> Code:
        names = tuple(0 if b.key is None else self._names[b.key] for b in state.pool.blocks)
        several = ((self._names[k], b) for k, b in state.pool.index.copies.items() if len(b) > 1)
        slots = tuple(
            FREE if slot == IDLE else (self.texts.index(slot.text), slot.table)
            for slot in state.slots
        )
        return slots, state.pool.free, names, tuple(sorted(several))

    def decode(self, code: Code) -> Cache:
        """The cache that is encoded so."""
        slots, queue, names, order = code
        keys = {number: key for key, number in self._names.items()}
        held = [block for _, table in slots for block in table]
        blocks = tuple(Block(held.count(b), keys.get(name)) for b, name in enumerate(names))
        copies: dict[Chain, Blocks] = {keys[name]: (b,) for b, name in enumerate(names) if name}
        copies.update((keys[name], several) for name, several in order)
        spelled = tuple(
            IDLE if slot == FREE else Slot(self.texts[slot[0]], slot[1]) for slot in slots
        )
        return Cache(Pool(blocks, queue, Index(copies)), spelled)

    def action(self, code: int) -> CacheAction:
        """What an encoded action stands for."""
        return Allocate(self.texts[code]) if code >= 0 else Free(-1 - code)

    def enabled(self, state: Code) -> Iterator[int]:
        slots, queue, names, order = state
        if FREE in slots:
            for number, text in enumerate(self._texts):
                hits = self._hits(text, names, order)
                idle = sum(block in queue for block in hits)
                if text.blocks - len(hits) + idle <= len(queue):
                    yield number
        for slot, held in enumerate(slots):
            if held is not FREE:
                yield -1 - slot

    def _hits(self, text: _Text, names: Names, order: Order) -> list[int]:
        hits: list[int] = []
        for name in text.names[: text.limit]:
            if name not in names:
                break
            block = names.index(name)
            if order:
                copies = next((blocks for several, blocks in order if several == name), (block,))
                block = copy_found(self.machine.policy, copies)
            hits.append(block)
        return hits

    def apply(self, state: Code, action: int) -> CodeMoved:
        slots, queue, names, order = state
        if action < 0:
            slot = -1 - action
            left = (*slots[:slot], FREE, *slots[slot + 1 :])
            freed = self._released(slots[slot][1], left, queue, names)
            return CodeMoved((left, freed, names, order))
        text = self._texts[action]
        hits = self._hits(text, names, order)
        rest = [block for block in queue if block not in hits]
        count = text.blocks - len(hits)
        taken = rest[:count]
        named = list(names)
        copies = dict(order) if order else {}
        for block in taken:
            if named[block]:
                _without(copies, named[block], block)
                named[block] = 0
        table = (*hits, *taken)
        for block, name in zip(taken, text.names[len(hits) :], strict=False):
            if name in named:
                copies[name] = (*copies.get(name, (named.index(name),)), block)
            named[block] = name
        slot = slots.index(FREE)
        held = (*slots[:slot], (action, table), *slots[slot + 1 :])
        ordered = tuple(sorted(copies.items())) if copies else ()
        return CodeMoved((held, tuple(rest[count:]), tuple(named), ordered))

    def _released(self, table: Blocks, others: Slots, queue: Blocks, names: Names) -> Blocks:
        head: list[int] = []
        tail: list[int] = []
        for block in release_walk(self.machine.policy, table):
            if not any(block in other for _, other in others):
                (head if self._to_head[names[block] > 0] else tail).append(block)
        return (*head, *queue, *tail)

    def canonical(self, state: Code) -> Code:
        if self.symmetry is Symmetry.NONE:
            return state
        slots, queue, names, order = state
        if self.symmetry is Symmetry.BLOCKS:
            return _by_appearance(slots, queue, names, order)
        if order:  # two tables can spell one text over different copies
            return min(_by_appearance(p, queue, names, order) for p in permutations(slots))
        return _by_appearance(tuple(sorted(slots)), queue, names, order)

    def restore(self, key: Code) -> Code:
        return key


def _without(copies: dict[int, Blocks], name: int, block: int) -> None:
    """One copy less; what has a single copy is not told."""
    several = copies.pop(name, ())
    if len(several) > 2:
        copies[name] = tuple(b for b in several if b != block)


def _by_appearance(slots: Slots, queue: Blocks, names: Names, order: Order) -> Code:
    number: dict[int, int] = {}
    for _, table in slots:
        for block in table:
            if block not in number:
                number[block] = len(number)
    for block in queue:
        number[block] = len(number)
    null = len(names) - len(number)
    if null:
        number = {block: i + null for block, i in number.items()}
    called = [0] * null + [names[block] for block in number]
    return (
        tuple(
            [(text, tuple([number[b] for b in table])) if table else FREE for text, table in slots]
        ),
        tuple([number[block] for block in queue]),
        tuple(called),
        tuple([(name, tuple([number[b] for b in blocks])) for name, blocks in order]),
    )
