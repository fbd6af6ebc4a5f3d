"""Stories about the zoo: faults that real engines had, who finds them, and what is kept of it."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from servecheck.engines.fast.pool import FastPool
from servecheck.explore.scopes import ServingScope, named
from servecheck.explore.serving import Serving
from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.subject import parted
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.zoo import ENTRIES, Entry
from servecheck.zoo.asked import Alone, EngineFell
from servecheck.zoo.document import FIRST_RUN, RESULTS, pairs_of, rows_of
from servecheck.zoo.entry import Parts, fault
from servecheck.zoo.golden import not_again
from servecheck.zoo.keys import FROZEN, strategies_of
from servecheck.zoo.matrix import chosen, matrix
from servecheck.zoo.reports import read_reports
from servecheck.zoo.rows import INDISTINGUISHABLE, KILLED, Kill, Row, read_rows
from servecheck.zoo.run import Plan, by_fuzzing, by_properties
from servecheck.zoo.search import around, nearest, nearest_along
from servecheck.zoo.told import subject_of
from servespec.actions import Abort, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import Namespace, keys
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33
from servespec.properties import PROPERTIES

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "traces"
CLEAN = Entry("clean", "Nothing.", "", "", "", "", "", Parts())


def world(name: str) -> Serving:
    """That of a scope."""
    scope = named(name)[0]
    assert isinstance(scope, ServingScope)
    return scope.system


@cache
def kept() -> dict[str, Row]:
    """The rows of the last whole run, with the seed that was tried at length."""
    return rows_of(RESULTS)


@cache
def all_kept() -> dict[str, tuple[Row, ...]]:
    """The same, and the rows with further seeds."""
    return pairs_of(RESULTS)


def timeless(rows: tuple[Row, ...]) -> list[Row]:
    """Rows without the seconds, which are measured."""

    def still(kill: Kill | None) -> Kill | None:
        return None if kill is None else evolve(kill, cpu=0.0)

    return [
        evolve(
            row,
            spec=still(row.spec),
            properties=still(row.properties),
            golden=still(row.golden),
            expected=still(row.expected),
        )
        for row in rows
    ]


# --- what stands in the zoo ------------------------------------------------------------------


def test_every_public_report_is_there_once_and_has_an_entry_or_a_reason() -> None:
    """Given the list of 228 reports; then each has a link, and an entry or a reason, and each
    entry stands for a report."""
    reports = read_reports()
    assert len({report.id for report in reports}) == len(reports) == 228
    assert sum(bool(report.entries) for report in reports) >= 90
    assert {name for report in reports for name in report.entries} == set(ENTRIES)
    assert len(ENTRIES) >= 60


def test_an_entry_says_what_it_is() -> None:
    """Then each has one sentence as title, what users saw, a class, and what must fall."""
    for entry in ENTRIES.values():
        assert entry.title.endswith(".")
        assert entry.seen.endswith(".")
        assert entry.root_cause
        assert entry.needs
        assert entry.expects == "APPLY-1" or entry.expects in PROPERTIES


def test_no_two_entries_are_the_same_change() -> None:
    changed = [entry.parts for entry in ENTRIES.values()]
    assert len(set(changed)) == len(changed)
    assert Parts() not in changed


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('id = "x"\nurls = ["https://x.org"]', "either entries stand for a report, or"),
        ('id = "x"\nurls = ["http://x.org"]\nwhy = "no"', "are no links"),
        ('id = "x"\nurls = ["https://x.org"]\nentries = ["nobody"]', "'nobody' is unknown"),
    ],
)
def test_a_list_of_reports_that_is_not_whole_is_refused(
    text: str, what: str, tmp_path: Path
) -> None:
    file = tmp_path / "reports.toml"
    file.write_text(f"[[report]]\n{text}\n", encoding="utf-8")
    with pytest.raises(RegisterError) as caught:
        read_reports(file)
    assert what in str(caught.value)


def test_a_class_without_a_docstring_is_no_entry() -> None:
    class Silent(FastPool):
        pass

    with pytest.raises(ValueError, match="a docstring"):
        fault("x", expects="OWN-1")(Silent)
    with pytest.raises(TypeError, match="no part"):
        fault("x", expects="OWN-1")(int)


# --- the engine without a fault ----------------------------------------------------------------


def test_no_check_finds_anything_in_the_engine_itself() -> None:
    """Given the fast engine with no part changed; then comparison, properties and recordings hold:
    what they find in an entry is its fault."""
    plan = Plan(seed=1, actions=1_000)
    assert by_fuzzing(CLEAN, plan) is None
    assert by_properties(CLEAN, plan) is None
    assert not_again(CLEAN, TRACES) is None
    found = nearest(CLEAN, world("serving-tiny/priority"))
    assert (found.depth, found.states, found.edges, found.whole) == (None, 509, 833, True)


# --- smallest programs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_its_shortest_program_parts_an_entry_from_the_specification_and_nobody_else(
    name: str,
) -> None:
    """Given the trace of an entry; when it is replayed, then it holds for the specification and the
    engine without a fault, and the engine with it parts on the last action. No seed knows a shorter
    one."""
    known = [row.shortest for row in all_kept()[name] if row.shortest is not None]
    if not known:
        assert all(row.spec is None for row in all_kept()[name])
        return
    trace = read_trace(TRACES / "zoo" / f"{name}.jsonl")
    report = replay_trace(trace)
    assert report.agrees
    assert report.reproduced
    assert parted(subject_of(CLEAN), trace.machine, trace.actions) is None
    found = parted(subject_of(ENTRIES[name]), trace.machine, trace.actions)
    assert found is not None
    assert len(found.actions) == len(trace.actions) <= min(known)


def test_there_is_no_program_without_an_entry() -> None:
    found = {file.stem for file in (TRACES / "zoo").glob("*.jsonl")}
    assert found == {row.entry for row in read_rows(RESULTS) if row.program is not None}


def test_search_finds_the_shortest_program() -> None:
    """Given the shortest program of an entry, and an abort in vain before it; when the world of
    both is searched, then the shortest program is found again."""
    trace = read_trace(TRACES / "zoo" / "hit-stays-free.jsonl")
    longer = (Abort("nobody"), *trace.actions)
    for actions in (trace.actions, longer):
        found = nearest_along(ENTRIES["hit-stays-free"], trace.machine, actions)
        assert found.depth == len(trace.actions)


def test_search_knows_what_an_engine_calls_a_key_from_all_of_the_way() -> None:
    """Given a fault by which who was preempted loses its namespace: the key that is missing was
    shown when it ran first; then the search comes to it."""
    machine = Machine(Config(1, 1, 2, 1, 1), MINIATURE)
    actions = (
        Submit("a", (0,), 1, Namespace("a", "bc")),
        Schedule(),
        ResetCache(preempt_running=True),
        Complete(),
        Schedule(),
    )
    assert nearest_along(ENTRIES["lost-on-resume"], machine, actions).depth == 5


def test_search_goes_the_way_that_an_engine_remembers() -> None:
    """Given a fault that outlasts the state that brought it about: who waits is aborted, nobody is
    there any more, and the next step of somebody else is lost. When states are told apart by
    themselves, then the second way to "nobody there" is not tried; with the state before it is."""
    trace = read_trace(TRACES / "zoo" / "stop-flag-for-all.jsonl")
    entry, world = ENTRIES["stop-flag-for-all"], around(trace.machine, trace.actions)
    assert nearest(entry, world, depth=4).program is None
    assert nearest(entry, world, depth=4, memory=1).depth == 4
    assert nearest_along(entry, trace.machine, trace.actions).depth == 4


def test_search_calls_requests_as_the_program_does_where_that_matters() -> None:
    """Given a fault that takes an id for the beginning of another; then the shortest program aborts
    the one and hits the other: in the slots of a search no id begins another."""
    machine, entry = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), ENTRIES["abort-by-prefix"]
    found = nearest_along(entry, machine, (Submit("r10", (0,), 1), Abort("r1")))
    assert found.program == (Submit("r10", (0,), 1), Abort("r1"))


def test_a_property_falls_on_what_an_engine_does_alone() -> None:
    """Given an engine whose aborts keep blocks, alone; when its one request is aborted, then a
    block is nowhere: OWN-1 falls on its state, and nobody says what the state should be."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    served = (Submit("a", (0,), 2), Schedule(), Complete((Output("a", (0,)),)))
    clean = Alone.of(CLEAN, machine)
    alone = Alone.of(ENTRIES["abort-keeps-blocks"], machine)
    for action in served:
        assert clean.do(action) == alone.do(action)
    assert clean.do(Abort("a")).live == ()
    with pytest.raises(EngineFell, match="OWN-1"):
        alone.do(Abort("a"))


def test_an_engine_that_shares_between_namespaces_goes_on() -> None:
    """Given an engine that leaves the adapter out of names, alone; when a request hits what another
    adapter has computed, then what it writes is worth nothing, and CON-1r says so where it is
    asked; nothing is raised, nor by the specification that goes on from there."""
    machine, entry = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), ENTRIES["adapter-left-out"]
    first = Submit("a", (1, 1, 1), 1, Namespace(adapter="x"))
    second = Submit("b", (1, 1, 1), 2, Namespace(adapter="y"))
    hits = (first, Schedule(), Complete((Output("a", (1,)),)), second, Schedule())
    asked, unasked = (
        Alone.of(entry, machine, properties) for properties in ((PROPERTIES["CON-1r"],), ())
    )
    for action in hits:
        asked.do(action)
        unasked.do(action)
    last = Complete((Output("b", (1,)),))
    # Whoever adopts a state names the blocks of a text as the specification does.
    named = (evolve(r, keys=keys(r.namespace, r.prompt, 2)) for r in unasked.state.running)
    adopted = evolve(unasked.state, running=tuple(named))
    for after in (machine.apply(adopted, last).state, unasked.do(last)):
        assert after.pool.blocks[after.running[0].table[1]].content == (None,)
    with pytest.raises(EngineFell, match="CON-1r: the pass of b from position 2 read another"):
        asked.do(last)


# --- what was kept -------------------------------------------------------------------------------


def test_the_rows_that_are_kept_are_of_these_entries() -> None:
    """Then there is one of each that was tried at length. Those that are masked were entered after
    the first run."""
    assert set(rows_of(RESULTS)) == set(ENTRIES)
    masked = {name for name, entry in ENTRIES.items() if entry.masked}
    assert set(rows_of(FIRST_RUN)) == set(ENTRIES) - masked
    assert all(row.chance_only is None for row in rows_of(RESULTS).values())


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_killed_or_known_to_be_masked(name: str) -> None:
    """Then of each that was killed the shortest program in the world of one that was found is
    known."""
    rows, masked = all_kept()[name], bool(ENTRIES[name].masked)
    assert rows[0].verdict == (INDISTINGUISHABLE if masked else KILLED)
    assert all((row.program is None) == (row.spec is None) for row in rows)
    assert all(row.depth is None for row in rows) == masked


def test_the_first_run_used_the_frozen_strategies() -> None:
    """Given the hashes that were taken before any entry was run; then those of the first run are
    the same."""
    frozen = tomllib.loads(FROZEN.read_text(encoding="utf-8"))
    used = {row.strategies for row in read_rows(FIRST_RUN)}
    assert used == {strategies_of(frozen["files"])}


def sampled(most: int = 600, count: int = 12) -> list[Row]:
    """Of all pairs of further seeds that were killed within some steps, a few, spread evenly."""
    pairs = [
        row
        for rows in pairs_of(RESULTS).values()
        for row in rows[1:]
        if row.spec is not None and row.spec.steps <= most
    ]
    return pairs[:: max(len(pairs) // count, 1)][:count]


@pytest.mark.parametrize("row", sampled(), ids=lambda row: f"{row.entry}-{row.seed}")
def test_further_seeds_kill_as_the_rows_say(row: Row) -> None:
    """Given a pair of an entry and a seed; when comparison has as many actions as it took in the
    last whole run, then it finds the entry, at the same action."""
    assert row.spec is not None
    found = by_fuzzing(ENTRIES[row.entry], Plan(row.seed, row.spec.steps))
    assert found is not None
    assert evolve(found[0], cpu=0.0) == evolve(row.spec, cpu=0.0)


def test_the_sample_is_one() -> None:
    pairs = sampled()
    assert len(pairs) == 12
    assert len({row.seed for row in pairs} - {0}) > 1
    assert len({row.entry for row in pairs}) > 3


@pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"),
    reason="takes half an hour: set SERVECHECK_SLOW to run it",
)
def test_a_whole_run_gives_the_rows_that_are_kept() -> None:
    found = matrix(chosen(()), Plan(traces=TRACES), jobs=2)
    assert timeless(found.rows) == timeless(tuple(kept()[row.entry] for row in found.rows))
