"""What the specification says, in the words in which an engine shows itself; and the difference.

Theory of operation. `said_*` turn a state, a plan, an outcome of the specification into the shapes
of `engines.protocol`; `differences` compares two of them field by field. A field that the engine
leaves None is not compared, and counted as not seen: it is undetermined. Keys are compared by what
they name: an engine's name for a key must always stand for the same key of the specification, and
two names for two keys (`Names`). A wrong name is told as the key that it has stood for: names may
be others in the next process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, fields, frozen

from servecheck.engines.protocol import (
    Copies,
    KeyName,
    SeenEntry,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
)
from servespec.events import Event, Finished, Preempted
from servespec.plan import Plan, State
from servespec.policy import Policy
from servespec.pool import Pool
from servespec.request import Request

PARTS = {kind: tuple(part.name for part in fields(kind)) for kind in (SeenRequest, SeenEntry)}
"""Of what is compared field by field."""


@frozen
class Difference:
    """One field in which an engine is not what the specification says."""

    field: str
    expected: object
    observed: object


@define
class Names:
    """Which key, of the specification or of a trace, each of an engine's names has stood for."""

    keys: dict[KeyName, KeyName]
    names: dict[KeyName, KeyName]
    fresh: list[tuple[KeyName, KeyName]]
    """Agreed on since the last `settle`."""

    @staticmethod
    def none() -> Names:
        return Names({}, {}, [])

    def agree(self, name: KeyName, key: KeyName) -> bool:
        """The name stands for this key, and the key has this name; the first time, it is so."""
        if name not in self.keys and key not in self.names:
            self.keys[name], self.names[key] = key, name
            self.fresh.append((name, key))
        return self.keys.get(name) == key and self.names.get(key) == name

    def settle(self) -> None:
        """What was agreed on is so."""
        self.fresh.clear()

    def unsettle(self) -> None:
        """What was agreed on since the last `settle` was agreed on while an engine deviated."""
        for name, key in self.fresh:
            del self.keys[name], self.names[key]
        self.fresh.clear()


def said_pool(pool: Pool) -> SeenPool:
    """A pool as an engine that hides nothing would show it."""
    index = tuple(Copies(key, blocks) for key, blocks in pool.index.copies.items())
    return SeenPool(pool.free, tuple(b.ref_count for b in pool.blocks), index)


def said_state(state: State) -> SeenState:
    return SeenState(
        said_pool(state.pool),
        tuple(_said_request(r) for r in state.running),
        tuple(_said_request(r) for r in state.waiting),
    )


def _said_request(r: Request) -> SeenRequest:
    return SeenRequest(r.id, r.computed, r.length, r.table, r.drafts)


def said_plan(plan: Plan, events: tuple[Event, ...]) -> SeenPlan:
    entries = (SeenEntry(e.id, e.start, len(e.tokens), e.drafts, e.table) for e in plan.entries)
    return SeenPlan(tuple(entries), tuple(e.id for e in events if isinstance(e, Preempted)))


def said_outcome(events: tuple[Event, ...]) -> SeenOutcome:
    return SeenOutcome(tuple((e.id, e.reason) for e in events if isinstance(e, Finished)))


@define
class Comparison:
    """Compares what is said with what is seen, and counts what could not be seen."""

    policy: Policy
    names: Names
    compared: Counter[str]
    unseen: Counter[str]
    last_plan: SeenPlan | None = None
    """What the engine has planned last."""

    @staticmethod
    def of(policy: Policy) -> Comparison:
        return Comparison(policy, Names.none(), Counter(), Counter())

    def pool(self, said: SeenPool, seen: SeenPool) -> Iterator[Difference]:
        first = self.policy.first_block
        yield from self._plain("free queue", said.free, seen.free)
        counts = None if seen.ref_counts is None else seen.ref_counts[first:]
        yield from self._plain("ref counts", (said.ref_counts or ())[first:], counts)
        if seen.index is None or said.index is None:
            self.unseen["index"] += 1
            return
        self.compared["index"] += 1
        mine = {c.blocks: c.key for c in said.index}
        # An engine may keep its index in any order; what differs first must not depend on it.
        for c in sorted(seen.index, key=lambda copies: copies.blocks):
            key = mine.pop(c.blocks, None)
            if key is None:
                yield Difference("index", "no key on blocks", c.blocks)
            elif not self.names.agree(c.key, key):
                stood_for = self.names.keys.get(c.key)
                seen_key = "a second name for it" if stood_for == key else stood_for
                yield Difference(f"key on blocks {c.blocks}", key, seen_key)
        for blocks, key in mine.items():
            yield Difference(f"index of {key!r}", blocks, "nothing")

    def state(self, said: SeenState, seen: SeenState) -> Iterator[Difference]:
        yield from self.pool(said.pool, seen.pool)
        yield from self._queue("running", said.running, seen.running)
        yield from self._queue("waiting", said.waiting, seen.waiting)

    def plan(self, said: SeenPlan, seen: SeenPlan) -> Iterator[Difference]:
        self.last_plan = seen
        ids = [e.id for e in said.entries]
        yield from self._plain("scheduled", ids, [e.id for e in seen.entries])
        yield from self._plain("preempted", said.preempted, seen.preempted)
        for a, b in zip(said.entries, seen.entries, strict=False):
            yield from self._parts(f"plan of {a.id}", a, b)

    def outcome(self, said: SeenOutcome, seen: SeenOutcome) -> Iterator[Difference]:
        """Who ended, in any order: an engine may tell them apart by its own."""
        mine, theirs = (sorted(i for i, _ in o.finished) for o in (said, seen))
        yield from self._plain("finished", mine, theirs)
        a, b = dict(said.finished), dict(seen.finished)
        for request_id in a.keys() & b.keys():
            yield from self._plain(f"end of {request_id}", a[request_id], b[request_id])

    def answer(self, name: str, said: bool, seen: bool) -> Iterator[Difference]:
        yield from self._plain(name, said, seen)

    def number(self, name: str, said: int, seen: int) -> Iterator[Difference]:
        yield from self._plain(name, said, seen, "numbers")

    def _queue(
        self,
        name: str,
        said: tuple[SeenRequest, ...] | None,
        seen: tuple[SeenRequest, ...] | None,
    ) -> Iterator[Difference]:
        if seen is None or said is None:
            self.unseen[name] += 1
            return
        yield from self._plain(name, [r.id for r in said], [r.id for r in seen])
        for a, b in zip(said, seen, strict=False):
            yield from self._parts(a.id, a, b)

    def _parts(
        self, name: str, said: SeenRequest | SeenEntry, seen: SeenRequest | SeenEntry
    ) -> Iterator[Difference]:
        # As `_plain`, without a name for what is equal: most steps end here.
        for part in PARTS[type(said)]:
            mine, theirs = getattr(said, part), getattr(seen, part)
            if theirs is None:
                self.unseen[part] += 1
                continue
            self.compared[part] += 1
            if mine != theirs:
                yield Difference(f"{name}: {part}", mine, theirs)

    def _plain(
        self, name: str, said: object, seen: object, kind: str | None = None
    ) -> Iterator[Difference]:
        if seen is None:
            self.unseen[kind or name] += 1
            return
        self.compared[kind or name] += 1
        if said != seen:
            yield Difference(name, said, seen)
