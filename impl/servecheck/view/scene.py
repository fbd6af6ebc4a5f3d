"""What there is to see in a state, as plain values: the common source of graph and picture.

Theory of operation. A scene has *holders*, each with a table of blocks: the requests that run, then
those that wait (whose tables are empty), then tables of requests that have left but that a step in
flight still writes. And it has *blocks*, each with what it holds, where it stands, and what became
of it since the moment before. The null block is no block here: it holds nothing and never moves.

The *parent* of a cached block is the block that a look-up would give for the key before its own;
there is none if that content is gone, and then no look-up reaches the block either.

All texts are escaped (`words.plain`): what comes from a scene can be written into any file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Literal

from attrs import field, frozen

from servecheck.recording.digest import content_name
from servecheck.view.moment import Moment
from servecheck.view.words import namespace_name, plain
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Schedule, Submit
from servespec.chain import Chain
from servespec.config import Config, blocks_for
from servespec.events import (
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Event,
    Finished,
    Reason,
    Scheduled,
)
from servespec.plan import State
from servespec.policy import Policy, copy_found
from servespec.pool import Pool

Status = Literal["running", "waiting", "left"]


class Change(Enum):
    """What became of a block since the moment before."""

    TAKEN = "taken"  # from the free queue, for new content
    EVICTED = "evicted"  # its old key is forgotten
    FOUND = "found"  # by a look-up: one holder more
    STORED = "stored"  # it got its key
    RELEASED = "released"  # nobody holds it any more


@frozen
class Holder:
    """One block table, and whose it is."""

    node: str
    """Its name in the graph."""
    name: str
    status: Status
    place: int
    """In its list: of the running, of the waiting, of those that left."""
    computed: int
    """C"""
    length: int
    """T"""
    in_flight: int
    """Tokens that the plans in flight compute for it."""
    namespace: str
    table: tuple[int, ...]
    hue: int | None
    """Which colour is its own, if it runs."""


@frozen
class ShownBlock:
    """One physical block."""

    number: int
    ref_count: int
    key: str
    """The last 8 hex digits of the hash of its key; empty without one."""
    depth: int
    """Blocks from the start of the text to this one; 0 without a key."""
    namespace: str
    """Of its key or of who holds it; empty if there is none."""
    queue: int | None
    """Place in the free queue, from its head; None if it is held."""
    copies: int
    """Blocks with this key, this one among them; 0 without a key."""
    found: int | None
    """The copy that a look-up gives, if that is another one."""
    parent: int | None
    written: bool
    """A step in flight writes to it."""
    changes: tuple[Change, ...]

    @property
    def node(self) -> str:
        """Its name in the graph."""
        return block_node(self.number)

    @property
    def hashed(self) -> bool:
        return bool(self.key)


@frozen
class Scene:
    """All of one moment."""

    name: str
    place: str
    doing: str
    """What was done since the moment before."""
    doubt: str
    block_size: int
    holders: tuple[Holder, ...]
    blocks: Mapping[int, ShownBlock] = field(hash=False)
    """By number."""
    free: tuple[int, ...]
    """The free queue, head first."""


def block_node(number: int) -> str:
    return f"block {number}"


def request_node(request_id: str) -> str:
    return f"request {plain(request_id)}"


def scene_of(moment: Moment) -> Scene:
    """What there is to see at a moment."""
    config, policy, state = moment.machine.config, moment.machine.policy, moment.state
    holders = tuple(_holders(state, moment.came))
    return Scene(
        plain(moment.name),
        moment.place,
        "; ".join(_doing(moment.actions, moment.events)),
        moment.doubt,
        config.block_size,
        holders,
        {
            block.number: block
            for block in _blocks(config, policy, state, holders, _changes(moment))
        },
        state.pool.free,
    )


# --- holders -------------------------------------------------------------------------------


def _holders(state: State, came: Mapping[str, int]) -> Iterator[Holder]:
    hues = list(_hues(came.get(r.id, r.arrival) for r in state.running))
    for at, r in enumerate(state.live):
        entries = [entry for plan in state.in_flight if (entry := plan.entry(r.id)) is not None]
        runs = at < len(state.running)
        yield Holder(
            request_node(r.id),
            plain(r.id),
            "running" if runs else "waiting",
            at if runs else at - len(state.running),
            r.computed,
            r.length,
            sum(len(entry.tokens) for entry in entries),
            namespace_name(r.namespace),
            r.table,
            hues[at] if runs else None,
        )
    left = [table for plan in state.in_flight for table in plan.deferred]
    for at, table in enumerate(left):
        yield Holder(f"left {at}", f"left {at}", "left", at, 0, 0, 0, "", table, None)


HUES = 8
"""Colours that there are."""


def _hues(numbers: Iterable[int]) -> Iterator[int]:
    """A colour for each request: its own one if that is free, so that it keeps it over time."""
    used: set[int] = set()
    for number in numbers:
        free = [h for h in range(number, number + HUES) if h % HUES not in used]
        if not free:
            used.clear()
        hue = (free[0] if free else number) % HUES
        used.add(hue)
        yield hue


# --- blocks --------------------------------------------------------------------------------


def _blocks(
    config: Config,
    policy: Policy,
    state: State,
    holders: tuple[Holder, ...],
    changes: Mapping[int, tuple[Change, ...]],
) -> Iterator[ShownBlock]:
    copies = state.pool.index.copies
    spaces = {b: holder.namespace for holder in reversed(holders) for b in holder.table}
    places = {b: place for place, b in enumerate(state.pool.free)}
    written = set(_written(state, config.block_size))
    for number in range(policy.first_block, len(state.pool.blocks)):
        block = state.pool.blocks[number]
        key = block.key
        same = () if key is None else copies.get(key, ())
        before = None if key is None or key.parent is None else copies.get(key.parent)
        found = copy_found(policy, same) if same else number
        yield ShownBlock(
            number,
            block.ref_count,
            "" if key is None else _short(key),
            0 if key is None else blocks_for(key.length, config.block_size),
            spaces.get(number, "") if key is None else namespace_name(key.namespace),
            places.get(number),
            len(same),
            None if found == number else found,
            copy_found(policy, before) if before else None,
            number in written,
            changes.get(number, ()),
        )


def _short(key: Chain) -> str:
    """8 hex digits of the name that a trace gives to a key, or of its own, if it has none there: a
    namespace may hold what is no Unicode."""
    try:
        return content_name(key)[-8:]
    except UnicodeEncodeError:
        return repr(key)[-9:-1]


def _written(state: State, block_size: int) -> Iterator[int]:
    """The blocks that the plans in flight write to."""
    for plan in state.in_flight:
        for entry in plan.entries:
            end = blocks_for(entry.start + len(entry.tokens), block_size)
            yield from entry.table[entry.start // block_size : end]


def _changes(moment: Moment) -> dict[int, tuple[Change, ...]]:
    """What became of each block on which anything changed."""
    if moment.before is None:
        return {}
    before, now = moment.before.pool, moment.state.pool
    taken = {b for e in moment.events if isinstance(e, Scheduled) for b in e.new_blocks}
    evicted = {e.block for e in moment.events if isinstance(e, BlockRemoved)}
    if any(isinstance(e, CacheCleared) for e in moment.events):
        keys = {b: block.key for b, block in enumerate(before.blocks) if block.key is not None}
        evicted |= {b for b, key in keys.items() if now.blocks[b].key != key}
    stored = {e.block for e in moment.events if isinstance(e, BlockStored)}
    found = {}
    for b in range(len(now.blocks)):
        all_of = tuple(_change(b, before, now, taken, evicted, stored))
        if all_of:
            found[b] = all_of
    return found


def _change(
    b: int, before: Pool, now: Pool, taken: set[int], evicted: set[int], stored: set[int]
) -> Iterator[Change]:
    had, has = before.blocks[b].ref_count, now.blocks[b].ref_count
    if b in taken and has:
        yield Change.TAKEN
    elif has > had:
        yield Change.FOUND
    elif had and not has:
        yield Change.RELEASED
    if b in evicted:
        yield Change.EVICTED
    if b in stored and now.blocks[b].key is not None:
        yield Change.STORED


# --- actions -------------------------------------------------------------------------------


def _doing(actions: Iterable[Action], events: tuple[Event, ...]) -> Iterator[str]:
    """What was done, in words; who arrived together stands together."""
    arrived: list[str] = []
    for action in (*actions, None):
        if isinstance(action, Submit):
            arrived.append(f"{plain(action.id)} ({len(action.prompt)} tokens)")
            continue
        if arrived:
            yield f"submit {', '.join(arrived)}"
            arrived = []
        if action is not None:
            yield _said(action, events)


def _said(action: Action, events: tuple[Event, ...]) -> str:
    match action:
        case Schedule():
            plan = [f"{plain(e.id)} +{e.tokens}" for e in events if isinstance(e, Scheduled)]
            return f"schedule {', '.join(plan)}" if plan else "schedule nothing"
        case Complete():
            ended = [
                plain(e.id)
                for e in events
                if isinstance(e, Finished) and e.reason is not Reason.ABORT
            ]
            return f"complete; {', '.join(ended)} ended" if ended else "complete"
        case Discard():
            return "discard"
        case Abort(id):
            return f"abort {plain(id)}"
        case ResetCache(preempt_running):
            return "reset the cache, preempting" if preempt_running else "reset the cache"
        case Submit(id):
            return f"submit {plain(id)}"
