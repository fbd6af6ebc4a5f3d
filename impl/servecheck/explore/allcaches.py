"""All states of a small cache, reachable or not.

Theory of operation. A state is put together from the slots, the free queue, the counts, the keys
on the blocks and the index. Each part runs over every value that it can have; where a property is
assumed that decides a part, over those values only. Blocks are numbered as they appear in the
tables and then in the free queue, so of all renamings one is enumerated.

* OWN: every block is free once or in a table, in none twice; its count is the number of tables.
* IDX: the index has exactly the keys that blocks carry, each with all of its carriers.
* CON: full blocks of a table carry the keys of its text; the others, and those behind, have none.
* LEN: a table has as many blocks as its text needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import permutations, product

from attrs import frozen

from servespec.cache import IDLE, Allocate, Cache, CacheAction, CacheMachine, Clear, Slot
from servespec.chain import Chain, Tokens
from servespec.config import blocks_for
from servespec.pool import Block, Blocks, Index, Pool


@frozen
class AllCaches:
    """Every state of a cache machine with these texts."""

    machine: CacheMachine
    texts: tuple[Tokens, ...]

    @property
    def properties(self) -> Mapping[str, Callable[[Cache], str | None]]:
        return {"OWN": self.own, "IDX": self.idx, "CON": self.con, "LEN": self.len}

    # --- what can be assumed ---

    def own(self, state: Cache) -> str | None:
        held = [b for slot in state.slots for b in slot.table]
        if any(len(set(slot.table)) != len(slot.table) for slot in state.slots):
            return "a table holds a block twice"
        places = sorted((*state.pool.free, *set(held)))
        if places != list(self._usable):
            return f"free or held: {places}"
        counts = [block.ref_count for block in state.pool.blocks]
        right = [held.count(b) for b in range(len(counts))]
        return None if counts == right else f"counts {counts}, tables {right}"

    def idx(self, state: Cache) -> str | None:
        carried: dict[Chain, set[int]] = {}
        for b, block in enumerate(state.pool.blocks):
            if block.key is not None:
                carried.setdefault(block.key, set()).add(b)
        index = state.pool.index.copies
        if any(len(set(copies)) != len(copies) for copies in index.values()):
            return "a copy is indexed twice"
        found = {key: set(copies) for key, copies in index.items()}
        return None if found == carried else f"index {found}, carried {carried}"

    def con(self, state: Cache) -> str | None:
        for slot in state.slots:
            keys = self.machine.keys(Allocate(slot.text)) if slot.text else ()
            carried = tuple(state.pool.blocks[b].key for b in slot.table)
            if carried != (*keys, *(None,) * (len(carried) - len(keys))):
                return f"text {slot.text}: keys {carried}"
        return None

    def len(self, state: Cache) -> str | None:
        wrong = [s for s in state.slots if len(s.table) != self._blocks(s.text)]
        return f"{wrong[0]} has another number of blocks than it needs" if wrong else None

    # --- the states ---

    @property
    def _usable(self) -> range:
        return range(self.machine.policy.first_block, self.machine.num_blocks)

    def _blocks(self, text: Tokens) -> int:
        return blocks_for(len(text), self.machine.block_size)

    def states(self, given: frozenset[str]) -> Iterator[Cache]:
        for slots in product(self._slots(given), repeat=self.machine.num_slots):
            held = [b for slot in slots for b in slot.table]
            for free in self._queues(held, given):
                if _by_appearance((*held, *free), self._usable):
                    yield from self._pools(slots, held, free, given)

    def _slots(self, given: frozenset[str]) -> list[Slot]:
        found = [IDLE]
        for text in self.texts:
            most = self._blocks(text)
            lengths = [most] if "LEN" in given else range(len(self._usable) + 1)
            for n in lengths:
                found += [Slot(text, table) for table in self._tables(n, given)]
        return found

    def _tables(self, n: int, given: frozenset[str]) -> Iterator[Blocks]:
        return permutations(self._usable, n) if "OWN" in given else product(self._usable, repeat=n)

    def _queues(self, held: list[int], given: frozenset[str]) -> Iterator[Blocks]:
        if "OWN" in given:
            yield from permutations(b for b in self._usable if b not in held)
            return
        for n in range(len(self._usable) + 1):
            yield from product(self._usable, repeat=n)

    def _pools(
        self, slots: tuple[Slot, ...], held: list[int], free: Blocks, given: frozenset[str]
    ) -> Iterator[Cache]:
        names = [held.count(b) for b in range(self.machine.num_blocks)]
        own = "OWN" in given
        most = range(self.machine.num_slots + 1)
        counts = [(names[b],) if own or b not in self._usable else most for b in range(len(names))]
        choices = [self._keys_of(b, slots, given) for b in range(len(names))]
        for carried in product(*choices):
            for copies in self._indexes(carried, given):
                for count in product(*counts):
                    blocks = tuple(map(Block, count, carried))
                    yield Cache(Pool(blocks, free, Index(copies)), slots)

    @property
    def _keys(self) -> tuple[Chain, ...]:
        every = (key for text in self.texts for key in self.machine.keys(Allocate(text)))
        return tuple(dict.fromkeys(every))

    def _keys_of(
        self, block: int, slots: tuple[Slot, ...], given: frozenset[str]
    ) -> tuple[Chain | None, ...]:
        """The keys that a block can carry."""
        if block not in self._usable:
            return (None,)
        if "CON" in given:
            for slot in slots:
                if block in slot.table:
                    keys, at = self.machine.keys(Allocate(slot.text)), slot.table.index(block)
                    return (keys[at] if at < len(keys) else None,)
        return (None, *self._keys)

    def _indexes(
        self, carried: tuple[Chain | None, ...], given: frozenset[str]
    ) -> Iterator[dict[Chain, Blocks]]:
        """Everything that the index can say."""
        right = {key: [b for b, k in enumerate(carried) if k is key] for key in self._keys}
        orders = [
            list(permutations(right[key]))
            if "IDX" in given
            else [t for n in range(len(self._usable) + 1) for t in permutations(self._usable, n)]
            for key in self._keys
        ]
        for chosen in product(*orders):
            yield {key: copies for key, copies in zip(self._keys, chosen, strict=True) if copies}

    # --- what can happen ---

    def steps(self, state: Cache) -> Iterator[tuple[object, Callable[[], Iterable[Cache]]]]:
        actions: list[CacheAction] = list(self.machine.enabled(state, self.texts))
        if len(state.pool.free) == len(self._usable):
            actions.append(Clear())
        for action in actions:
            yield action, partial(self._after, state, action)

    def _after(self, state: Cache, action: CacheAction) -> tuple[Cache, ...]:
        return (self.machine.apply(state, action).state,)


def _by_appearance(seen: Blocks, usable: range) -> bool:
    """The blocks are numbered as they are seen, those that are not, last."""
    first = tuple(dict.fromkeys(seen))
    return first == tuple(usable[: len(first)])
