"""Stories about the zoo: faults that real engines had, who finds them, and what is kept of it."""

from __future__ import annotations

import json
import os
import tomllib
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.pool import FastPool
from servecheck.explore.scopes import ServingScope, named
from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.subject import parted
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.zoo import ENTRIES, Entry
from servecheck.zoo.asked import Alone, EngineFell
from servecheck.zoo.document import FIRST_RUN, RESULTS, rows_of
from servecheck.zoo.entry import Parts, fault
from servecheck.zoo.golden import not_again
from servecheck.zoo.keys import FROZEN, strategies_of
from servecheck.zoo.matrix import KILLED, ResultsError, chosen, matrix, read_rows
from servecheck.zoo.reports import read_reports
from servecheck.zoo.run import (
    Kill,
    Plan,
    Row,
    by_fuzzing,
    by_properties,
)
from servecheck.zoo.search import around, nearest
from servecheck.zoo.told import subject_of
from servespec.actions import Abort, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33
from servespec.properties import PROPERTIES

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "traces"
CLEAN = Entry("clean", "Nothing.", "", "", "", "", "", Parts())
SAMPLE = ("hit-stays-free", "told-without-parent", "abort-not-told", "one-token-too-many")
"""Entries that are found at once: on the engine's state, on its events, on an end."""


@cache
def kept() -> dict[str, Row]:
    """The rows of the last whole run."""
    return rows_of(RESULTS)


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
    scope = named("serving-tiny/priority")[0]
    assert isinstance(scope, ServingScope)
    found = nearest(CLEAN, scope.system)
    assert (found.depth, found.states, found.edges, found.whole) == (None, 509, 833, True)


# --- smallest programs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_its_smallest_program_parts_an_entry_from_the_specification_and_nobody_else(
    name: str,
) -> None:
    """Given the trace of an entry; when it is replayed, then it holds for the specification and the
    engine without a fault, and the engine with it parts on the last action."""
    row = kept()[name]
    if row.program is None:
        assert row.spec is None
        return
    trace = read_trace(TRACES / "zoo" / f"{name}.jsonl")
    report = replay_trace(trace)
    assert report.agrees
    assert report.reproduced
    assert parted(subject_of(CLEAN), trace.machine, trace.actions) is None
    found = parted(subject_of(ENTRIES[name]), trace.machine, trace.actions)
    assert found is not None
    assert len(found.actions) == len(trace.actions) == (row.depth or row.program)


def test_there_is_no_program_without_an_entry() -> None:
    found = {file.stem for file in (TRACES / "zoo").glob("*.jsonl")}
    assert found == {row.entry for row in read_rows(RESULTS) if row.program is not None}


def test_search_finds_the_shortest_program() -> None:
    """Given the smallest program of an entry; when its world is searched, then the shortest one is
    as long as the row says, and no longer than the program."""
    trace = read_trace(TRACES / "zoo" / "hit-stays-free.jsonl")
    entry = ENTRIES["hit-stays-free"]
    found = nearest(entry, around(trace.machine, trace.actions), edges=20_000)
    assert found.depth == kept()["hit-stays-free"].depth
    assert found.depth is not None
    assert found.depth <= len(trace.actions)


# --- runs ----------------------------------------------------------------------------------------


def timeless(rows: tuple[Row, ...]) -> list[Row]:
    """Rows without the seconds, which are measured."""

    def still(kill: Kill | None) -> Kill | None:
        return None if kill is None else evolve(kill, cpu=0.0)

    return [
        evolve(r, spec=still(r.spec), properties=still(r.properties), golden=still(r.golden))
        for r in rows
    ]


def test_the_same_seed_gives_the_same_rows_and_a_run_is_resumed(tmp_path: Path) -> None:
    """Given a run over some entries that was stopped after one; when it goes on in two processes,
    then the first row is the one that was kept, and all are as in a run of one process."""
    plan, results = Plan(actions=2_000, traces=TRACES), tmp_path / "rows.jsonl"
    whole = matrix(chosen(SAMPLE), plan)
    assert [row.verdict for row in whole.rows] == [KILLED] * len(SAMPLE)
    first = matrix(chosen(SAMPLE[:1]), plan, results=results).rows[0]
    new: list[str] = []
    again = matrix(chosen(SAMPLE), plan, 2, results, lambda row: new.append(row.entry))
    assert set(new) == set(SAMPLE[1:])
    assert first in again.rows
    assert timeless(again.rows) == timeless(whole.rows)
    other = evolve(plan, seed=1)
    assert matrix(chosen(SAMPLE[:1]), other, results=results).rows[0].seed == 1


def test_a_file_of_rows_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"entry": 1}\n', encoding="utf-8")
    with pytest.raises(ResultsError, match="this is no row"):
        list(read_rows(file))


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


# --- what was kept -------------------------------------------------------------------------------


def test_the_rows_that_are_kept_are_of_these_entries() -> None:
    assert set(rows_of(RESULTS)) == set(rows_of(FIRST_RUN)) == set(ENTRIES)


def test_the_first_run_used_the_frozen_strategies() -> None:
    """Given the hashes that were taken before any entry was run; then those of the first run are
    the same."""
    frozen = tomllib.loads(FROZEN.read_text(encoding="utf-8"))
    used = {row.strategies for row in read_rows(FIRST_RUN)}
    assert used == {strategies_of(frozen["files"])}


@pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"),
    reason="takes half an hour: set SERVECHECK_SLOW to run it",
)
def test_every_entry_that_can_be_told_apart_is_killed() -> None:
    found = matrix(chosen(()), Plan(traces=TRACES), jobs=2)
    assert timeless(found.rows) == timeless(tuple(kept()[row.entry] for row in found.rows))


# --- the command ---------------------------------------------------------------------------------


def test_the_command_tells_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given one entry; when it is tried, then the JSON has totals and its row, and the table a
    line."""
    monkeypatch.chdir(ROOT)
    args = ["zoo", "--entry", "hit-stays-free", "--seconds", "1"]
    assert main([*args, "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)
    assert (told["entries"], told["killed"], told["missed"]) == (1, 1, 0)
    assert told["rows"][0]["properties"]["by"] == "OWN-1"
    assert main(args) == Exit.HOLDS
    said = capsys.readouterr().out
    assert "hit-stays-free" in said
    assert "1 entries: 1 killed, 0 missed, 0 indistinguishable" in said


def test_the_command_lists_entries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "--list", "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)
    assert {row["entry"] for row in told["entries"]} == set(ENTRIES)
    assert main(["zoo", "--list", "--entry", "stale-index"]) == Exit.HOLDS
    assert "The index entry of an evicted block stays." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--entry", "nobody"], "no such entry"),
        (["--traces", "nowhere"], "there is no such folder"),
    ],
)
def test_what_is_not_there_is_bad_input(
    args: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", *args]) == Exit.BAD_INPUT
    assert what in capsys.readouterr().err
