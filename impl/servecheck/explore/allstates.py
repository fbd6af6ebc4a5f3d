"""All idle states of a small serving machine, reachable or not.

Theory of operation. Idle is a state without a plan in flight. It is put together from the requests
and their tables, the free queue, the counts, the keys on the blocks, the index, and what the slots
of the blocks hold. Each part runs over every value that it can have; where a property is assumed
that decides a part, over those values only. Blocks are numbered as they appear in the tables and
then in the free queue, so of all renamings one is enumerated.

What runs over one value only, since no transition of these machines reads it: the rank of arrival
(it is the place; serving is first come, first served), and whether a request is prefilling (there
are no drafts). Keys and content are chains by construction, so IDX-3 is not asked.

A step that makes a plan is taken to its end: the plan is completed in every way, and discarded. The
state in between counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations, product

from attrs import evolve, field, frozen

from servecheck.explore.asking import NOTHING
from servecheck.explore.errors import ScopeError
from servecheck.explore.serving import IDS, Serving
from servespec.actions import Abort, Action, ResetCache, Schedule
from servespec.chain import Chain, Namespace, Tokens, keys
from servespec.machine import Discard
from servespec.plan import State
from servespec.policy import Order
from servespec.pool import Block, Blocks, Index, Pool
from servespec.properties import PROPERTIES, Fall, Kind, Property, Step
from servespec.properties.base import holders
from servespec.properties.content import own_text, slots_of
from servespec.request import Request, arrived, with_output

Content = tuple[Chain | None, ...]
Check = Callable[[State], str | None]
BY_CONSTRUCTION = "IDX-3"


def forgotten(state: State) -> str | None:
    """A free block without a key holds no content."""
    kept = [b for b in state.pool.free if _nobodys(state.pool.blocks[b])]
    return f"blocks {kept} are free, without a key, and hold content" if kept else None


def _nobodys(block: Block) -> bool:
    return block.key is None and bool(block.content)


STRENGTHENINGS: Mapping[str, Check] = {"forgotten": forgotten}
"""What is no registered property, and may have to be assumed besides."""


@frozen
class AllStates:
    """Every idle state in which requests of a system's kinds are alive.

    Raises:
        ScopeError: the system has drafts, or serves by priority.
    """

    system: Serving
    _checks: Mapping[str, Check] = field(init=False, eq=False, repr=False)
    _texts: tuple[tuple[Namespace, Tokens], ...] = field(init=False, eq=False, repr=False)
    _keys: tuple[Chain, ...] = field(init=False, eq=False, repr=False)
    _contents: tuple[Content, ...] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        machine, size = self.system.machine, self.system.machine.config.block_size
        if machine.config.num_speculative_tokens or machine.policy.order is Order.PRIORITY:
            raise ScopeError(
                "drafts and priorities are not enumerated", "choose a scope without them"
            )
        checks = {
            p.id: self._check(p)
            for p in PROPERTIES.values()
            if p.kind is Kind.S
            and p.id != BY_CONSTRUCTION
            and p.expected(machine.config, machine.policy) is None
        }
        texts = {
            (kind.namespace, kind.prompt + output)
            for kind in self.system.kinds
            for n in range(kind.max_tokens + 1)
            for output in product(self.system.tokens, repeat=n)
            if len(kind.prompt) + n <= machine.config.max_model_len
        }
        ordered = tuple(sorted(texts, key=repr))
        found = (key for namespace, text in ordered for key in keys(namespace, text, size))
        slots = dict.fromkeys(c for namespace, text in ordered for c in own_text(namespace, text))
        values = (None, *slots)
        contents = tuple(c for n in range(size + 1) for c in product(values, repeat=n))
        object.__setattr__(self, "_checks", checks)
        object.__setattr__(self, "_texts", ordered)
        object.__setattr__(self, "_keys", tuple(dict.fromkeys(found)))
        object.__setattr__(self, "_contents", contents)

    def _check(self, p: Property) -> Check:
        machine = self.system.machine
        monitor = p.start(machine, machine.initial())

        def check(state: State) -> str | None:
            _, outcome = monitor.after(Step(machine, state, NOTHING, state, ()))
            return outcome.what if isinstance(outcome, Fall) else None

        return check

    @property
    def properties(self) -> Mapping[str, Check]:
        """The registered properties of a state that hold under this policy, and what
        strengthens them."""
        return {**self._checks, **STRENGTHENINGS}

    # --- the states ---

    @property
    def _usable(self) -> range:
        machine = self.system.machine
        return range(machine.policy.first_block, machine.config.num_blocks)

    def states(self, given: frozenset[str]) -> Iterator[State]:
        waits = list(self._requests(given, running=False))
        runs = list(self._requests(given, running=True))
        for live in range(self.system.live + 1):
            for count in range(live + 1):
                choices = [runs] * count + [waits] * (live - count)
                for chosen in product(*choices):
                    placed = tuple(evolve(r, id=IDS[i], arrival=i) for i, r in enumerate(chosen))
                    yield from self._pools(placed[:count], placed[count:], given)

    def normal(self, state: State) -> State:
        """The state with the values that are not enumerated set to the one that is: ranks of
        arrival, and who is prefilling."""
        places = {r.id: i for i, r in enumerate(state.live)}
        plain = {
            r.id: evolve(r, arrival=places[r.id], prefilling=r in state.waiting) for r in state.live
        }
        waiting, running = ([plain[r.id] for r in q] for q in (state.waiting, state.running))
        return State(state.pool, tuple(waiting), tuple(running), state.in_flight)

    def _requests(self, given: frozenset[str], *, running: bool) -> Iterator[Request]:
        """A request alone: its text, what is computed, its table, what it has published."""
        tab = self._checks["TAB-1"] if "TAB-1" in given and running else None
        empty = self.system.machine.initial().pool
        for bare in self._bare():
            if not running and "OWN-3" in given:
                yield bare
                continue
            for table in self._tables(given):
                for computed in range(bare.length + 1):
                    r = evolve(bare, computed=computed, table=table, prefilling=False)
                    if tab is not None and tab(State(empty, (), (r,))) is not None:
                        continue
                    for published in range(len(table) + 1):
                        yield evolve(r, published=published)

    def _bare(self) -> Iterator[Request]:
        machine = self.system.machine
        for kind in self.system.kinds:
            waits = arrived(kind, 0, machine.config, machine.policy)
            for n in range(kind.max_tokens):
                if waits.length + n < machine.config.max_model_len or n == 0:
                    for output in product(self.system.tokens, repeat=n):
                        yield with_output(waits, output, machine.config, machine.policy)

    def _tables(self, given: frozenset[str]) -> Iterator[Blocks]:
        for n in range(len(self._usable) + 1):
            if "TAB-1" in given:
                yield from permutations(self._usable, n)
            else:
                yield from product(self._usable, repeat=n)

    def _pools(
        self, running: tuple[Request, ...], waiting: tuple[Request, ...], given: frozenset[str]
    ) -> Iterator[State]:
        held = [b for r in running + waiting for b in r.table]
        if not _by_appearance(held, self._usable):
            return
        carried = [self._keys_of(b, running, given) for b in self._blocks]
        for free in self._queues(held, given):
            if not _by_appearance((*held, *free), self._usable):
                continue
            for names in product(*carried):
                yield from self._written(names, running, waiting, free, given)

    @property
    def _blocks(self) -> range:
        return range(self.system.machine.config.num_blocks)

    def _queues(self, held: Sequence[int], given: frozenset[str]) -> Iterator[Blocks]:
        if "OWN-1" in given:
            yield from permutations(b for b in self._usable if b not in held)
            return
        for n in range(len(self._usable) + 1):
            yield from product(self._usable, repeat=n)

    def _keys_of(
        self, block: int, running: tuple[Request, ...], given: frozenset[str]
    ) -> tuple[Chain | None, ...]:
        """The keys that a block can carry."""
        if block not in self._usable:
            return (None,)
        for r in running if "PUB-1" in given else ():
            if block in r.table:
                at = r.table.index(block)
                return (r.keys[at] if at < min(r.published, len(r.keys)) else None,)
        return (None, *self._keys)

    def _written(
        self,
        names: tuple[Chain | None, ...],
        running: tuple[Request, ...],
        waiting: tuple[Request, ...],
        free: Blocks,
        given: frozenset[str],
    ) -> Iterator[State]:
        """Whatever the counts, the index and the slots of the blocks say."""
        right = holders(State(Pool((), ()), waiting, running))
        most = range(self.system.live + 1)
        counts = [
            (right.get(b, 0),) if "OWN-2" in given or b not in self._usable else most
            for b in self._blocks
        ]
        contents = [
            ((),)
            if "forgotten" in given and b in free and names[b] is None
            else self._contents_of(b, names[b], running, given)
            for b in self._blocks
        ]
        for index in self._indexes(names, given):
            for count in product(*counts):
                for content in product(*contents):
                    blocks = tuple(map(Block, count, names, content))
                    yield State(Pool(blocks, free, index), waiting, running)

    def _contents_of(
        self, block: int, key: Chain | None, running: tuple[Request, ...], given: frozenset[str]
    ) -> tuple[Content, ...]:
        """What the slots of a block can hold."""
        size = self.system.machine.config.block_size
        if block not in self._usable:
            return ((),)
        if key is not None and "CON-3" in given:
            return (slots_of(key),)
        for r in running if "CON-1" in given else ():
            if block in r.table:
                at = r.table.index(block)
                own = own_text(r.namespace, r.text(0, r.computed))[at * size : (at + 1) * size]
                return tuple(c for c in self._contents if c[: len(own)] == own)
        return self._contents

    def _indexes(self, carried: tuple[Chain | None, ...], given: frozenset[str]) -> Iterator[Index]:
        """Everything that the index can say."""
        usable = self._usable
        anything = [t for n in range(len(usable) + 1) for t in product(usable, repeat=n)]
        orders: list[list[Blocks | None]] = []
        for key in self._keys:
            right = tuple(b for b, k in enumerate(carried) if k is key)
            exact: list[Blocks | None] = [*permutations(right)] if right else [None]
            if not {"IDX-1", "IDX-2"} <= given:
                exact = [None, *anything]
            orders.append(exact)
        for chosen in product(*orders):
            said = zip(self._keys, chosen, strict=True)
            yield Index({key: copies for key, copies in said if copies is not None})

    # --- what can happen ---

    def steps(self, state: State) -> Iterator[tuple[object, Callable[[], Iterable[State]]]]:
        taken = {r.id for r in state.live}
        free = next(i for i in IDS if i not in taken)
        arriving = [evolve(kind, id=free) for kind in self.system.kinds]
        others: list[Action] = [
            *(arriving if len(taken) < self.system.live else ()),
            *(Abort(id) for id in sorted(taken)),
            ResetCache(False),
            ResetCache(True),
        ]
        for action in others:
            yield action, partial(self._after, state, action)
        yield Schedule(), partial(self._passes, state)

    def _after(self, state: State, action: Action) -> tuple[State, ...]:
        return (self.system.machine.apply(state, action).state,)

    def _passes(self, state: State) -> Iterator[State]:
        machine = self.system.machine
        planned = machine.apply(state, Schedule()).state
        yield planned
        for outcome in machine.completions(planned.in_flight[0], self.system.tokens):
            yield machine.apply(planned, outcome).state
        if machine.can_discard:
            yield machine.apply(planned, Discard()).state


def _by_appearance(seen: Sequence[int], usable: range) -> bool:
    """The blocks are numbered as they are seen, those that are not, last."""
    first = tuple(dict.fromkeys(seen))
    return first == tuple(usable[: len(first)])
