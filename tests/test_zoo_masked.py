"""Stories about faults that cannot be seen, because something else makes up for them; and about
engines in which nothing does.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.trie import Names, Trie
from servecheck.zoo import ENTRIES
from servecheck.zoo.entry import Parts
from servecheck.zoo.eviction import WaysStay
from servecheck.zoo.leaving import LetGoTwice
from servecheck.zoo.preemption import LimitKeptOverPreemption
from servecheck.zoo.rows import INDISTINGUISHABLE, MISSED
from servecheck.zoo.run import Plan, by_properties, try_entry
from servecheck.zoo.search import nearest
from servespec.chain import Namespace
from tests.test_zoo import CLEAN, world

TWO_TENANTS = world("serving-tiny/two-tenants")


class Kept(FastEngine):
    """Who lets a table go does not empty it, unless its request is sent back."""

    def _let_go(self, request: FastRequest) -> None:
        table = request.table
        super()._let_go(request)
        if request in self.running or request in self.waiting:
            request.table = table


class KeptAndLetGoTwice(LetGoTwice, Kept):
    pass


class Counted(Trie):
    """Whoever comes counts the ways that are held: one of somebody who has gone is an error."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.there: set[Names] = set()

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        super().extend(names, namespace, text, size)
        self.there.add(names)
        runs, held = [*self.roots.values()], 0
        for run in runs:  # the list grows
            held += run.ends
            runs += run.children.values()
        if held > len(self.there):
            raise LookupError(f"{held} ways are held for {len(self.there)} requests")

    def drop(self, names: Names) -> None:
        super().drop(names)
        self.there.discard(names)


class CountedAndStaying(Counted, WaysStay):
    pass


class NotMeasured(Pass):
    """An admission leaves what is known of the table as it was."""

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        steady = request.steady
        super().book(request, stop, taken, admitted)
        if admitted:
            request.steady = steady


GUARDLESS = {
    "let-go-twice": Parts(engine=KeptAndLetGoTwice),
    "ways-stay": Parts(trie=CountedAndStaying),
    "limit-kept-over-preemption": Parts(engine=LimitKeptOverPreemption, passes=NotMeasured),
}
"""The masked entries without the guard that masks them."""


def test_each_entry_that_is_masked_has_a_control() -> None:
    assert set(GUARDLESS) == {name for name, entry in ENTRIES.items() if entry.masked}


@pytest.mark.parametrize("name", GUARDLESS)
def test_a_masked_entry_cannot_be_told_apart_until_its_guard_is_gone(name: str) -> None:
    """Given a fault behind a second guard; then no action in any state of a scope shows it. When
    the guard is gone too, then one does, and the property falls that the entry names."""
    entry = ENTRIES[name]
    found = nearest(entry, TWO_TENANTS)
    assert (found.depth, found.states, found.whole) == (None, 1_049, True)
    bare = evolve(entry, parts=GUARDLESS[name])
    assert nearest(bare, TWO_TENANTS).depth is not None
    fell = by_properties(bare, Plan(actions=10_000), entry.expects)
    assert fell is not None
    assert fell.by == entry.expects


@pytest.mark.parametrize("guardless", [Parts(engine=Kept), Parts(trie=Counted)])
def test_of_two_guards_either_will_do(guardless: Parts) -> None:
    """Given an engine without the guard, and without the fault; then nothing shows either. (What an
    admission measures is needed for more than the third fault.)"""
    assert nearest(evolve(CLEAN, parts=guardless), TWO_TENANTS).depth is None


def test_what_is_said_to_be_masked_and_is_not_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an entry that chance does not find, and that is wrongly said to be masked; when all is
    searched, then the verdict is missed, with the scope that tells it; and one that is rightly said
    to be is indistinguishable, with the number of states."""
    monkeypatch.setattr("servecheck.zoo.run.by_fuzzing", lambda entry, plan: None)
    monkeypatch.setattr("servecheck.zoo.run.by_properties", lambda entry, plan, only=None: None)
    monkeypatch.setattr("servecheck.zoo.run.SCOPES", "serving-tiny/small-pool")
    wrongly = evolve(ENTRIES["stale-index"], masked="a guard that is not there")
    row, _ = try_entry(wrongly, Plan())
    assert (row.verdict, row.depth) == (MISSED, 5)
    assert row.why == "serving-tiny/small-pool tells it apart in 5 actions"
    row, _ = try_entry(ENTRIES["let-go-twice"], Plan())
    assert (row.verdict, row.states) == (INDISTINGUISHABLE, 38)
    assert row.why.endswith("no difference in all 38 states of serving-tiny/small-pool")
