"""The canonical form of a state: the same for all states that differ only in names.

Theory of operation. Which block a request holds and what a request is called decide nothing but
where ids are compared. So blocks are renamed by first appearance, in tables (running, then waiting,
then plans in flight) and then along the free queue, and request ids by first appearance in the same
lists; of arrivals the order is kept. Two states with one canonical form go on in the same way, up
to the same names, unless ids break a tie. The form can be hashed, and kept in a set.
"""

from __future__ import annotations

from collections.abc import Hashable

from attrs import evolve

from servespec.chain import Chain
from servespec.plan import Plan, State
from servespec.pool import Blocks
from servespec.request import Request


def canonical(state: State) -> Hashable:
    """The canonical form of a state. Ghosts are left out: no transition reads them (GHO-1)."""
    blocks: dict[int, int] = {}
    names: dict[str, str] = {}
    ranks = {at: rank for rank, at in enumerate(sorted({r.arrival for r in state.live}))}

    def numbered(table: Blocks) -> Blocks:
        return tuple(blocks.setdefault(block, len(blocks)) for block in table)

    def named(name: str) -> str:
        return names.setdefault(name, f"r{len(names)}")

    def request(one: Request) -> Request:
        return evolve(one, id=named(one.id), table=numbered(one.table), arrival=ranks[one.arrival])

    def plan(one: Plan) -> Plan:
        entries = tuple(evolve(e, id=named(e.id), table=numbered(e.table)) for e in one.entries)
        return evolve(one, entries=entries, deferred=tuple(map(numbered, one.deferred)))

    running = tuple(map(request, state.running))
    waiting = tuple(map(request, state.waiting))
    plans = tuple(map(plan, state.in_flight))
    free = numbered(state.pool.free)
    held: list[tuple[int, int, Chain | None]] = sorted(
        (
            (number, state.pool.blocks[block].ref_count, state.pool.blocks[block].key)
            for block, number in blocks.items()
        ),
        key=lambda row: row[0],
    )
    copies = frozenset(
        (key, tuple(blocks.get(block, -1) for block in held_by))
        for key, held_by in state.pool.index.copies.items()
    )
    return running, waiting, plans, free, tuple(held), copies
