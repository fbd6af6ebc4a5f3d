"""`servecheck check`: what a search says, how it ends, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import networkx as nx
import pytest

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.explore.asking import MARK, Asking
from servecheck.explore.check import Says, Wish, check
from servecheck.explore.scopes import PoolScope, ServingScope, named, scopes
from servecheck.explore.search import Limits, search
from servecheck.marks import Mark
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servespec import pool as blocks
from servespec.pool import Moved, Pool


def run(*args: str) -> int:
    return main(["check", "--jobs", "1", *args])


def row(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    run(*args, "--json")
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_scope_that_is_exhausted_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scope", "tiny-pool-small") == Exit.HOLDS
    out = capsys.readouterr().out
    assert "= tiny-pool-small                  1,070 states       7,142 transitions" in out
    assert "exhausted" in out


def test_what_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = row(capsys, "--scope", "tiny-pool-small")
    assert (found["states"], found["transitions"], found["depth"]) == (1_070, 7_142, 9)
    assert found["verdict"] == "holds"
    assert isinstance(found["seconds"], float)


def test_a_search_that_stops_says_nothing_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """The same scope, up to depth 3: no property of it holds, or is vacuous."""
    assert run("--scope", "serving-tiny/reserved", "--depth", "3") == Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert "stopped at the limit of depth" in out
    assert "= serving" not in out
    found = row(capsys, "--scope", "serving-tiny/reserved", "--depth", "3")
    assert found["verdict"] == "undetermined"


def test_a_known_fall_is_told_with_its_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scope", "serving-tiny/priority", "--property", "CON-3") == Exit.HOLDS
    assert "~ CON-3 after 7 actions: " in capsys.readouterr().out


def test_the_groups_and_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list", "--profile", "STATIC") == Exit.HOLDS
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["serving-tiny/static"]
    found = row(capsys, "--scope", "serving-tiny", "--profile", "RESERVED", "--property", "OWN-1")
    assert found["states"] == 260


def test_raw_finds_the_same_under_more_names(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--scope", "serving-tiny/reserved", "--property", "OWN-1", "--property", "LRU-3")
    few, many = row(capsys, *asked), row(capsys, *asked, "--raw")
    assert few["states"] == 260
    assert int(str(many["states"])) > 260
    assert few["verdict"] == many["verdict"] == "holds"


@pytest.mark.parametrize("ending", ["dot", "graphml"])
def test_the_graph_of_states(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"states.{ending}"
    assert run("--scope", "serving-tiny/reserved", "--property", "OWN-1", "--graph", str(file)) == 0
    if ending == "graphml":
        graph = nx.read_graphml(file)
        assert graph.number_of_nodes() == 260
        assert graph.number_of_edges() == 1_053
    else:
        assert file.read_text("utf-8").startswith('digraph "serving-tiny/reserved"')


def test_junit_has_a_case_for_each_property(tmp_path: Path) -> None:
    file = tmp_path / "check.xml"
    assert run("--scope", "serving-tiny/reserved", "--junit", str(file)) == Exit.HOLDS
    suite = Xml.parse(file).getroot()[0]
    assert suite.get("failures") == "0"
    skipped = [case.get("name") for case in suite if len(case)]
    assert {"ATOM-1", "PRE-1"} <= set(skipped)


def test_the_matrix_says_how_often_each_property_was_asked(tmp_path: Path) -> None:
    file = tmp_path / "matrix.md"
    assert run("--scope", "serving-tiny/reserved", "--matrix", str(file)) == Exit.HOLDS
    rows = [line.split("|")[1:3] for line in file.read_text("utf-8").splitlines()]
    cells = {name.strip(): cell.strip() for name, cell in rows}
    assert cells["property"] == "reserved"
    assert cells["ATOM-1"] == "–"
    assert cells["EVI-1"].startswith("~ ")
    assert int(cells["OWN-1"].replace(",", "")) > 200


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--scope", "serving-tny"], "no scope is called 'serving-tny'; choose of serving-tiny"),
        (["--property", "OWN-9"], "there is no property 'OWN-9'"),
        (["--profile", "SGLANG"], "no scope of these has the profile 'SGLANG'"),
        (["--graph", "x.dot"], "--graph draws one scope"),
        (["--scope", "tiny-pool-small", "--graph", "x.png"], "neither .dot nor .graphml"),
        (
            ["--engine", "fast", "--scope", "tiny-pool-small"],
            "--engine needs a scope of the serving",
        ),
        (["--engine", "fast", "--raw"], "--raw is about the specification"),
        (["--jobs", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *args]) == Exit.BAD_INPUT
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_fault_is_found_and_kept_as_a_shortest_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pool whose hits stay in the free queue: a hit block is in two places after the shortest
    program that has a hit. The trace replays to the same fall, while the fault is there."""
    right = blocks.acquire

    def acquire(pool: Pool, hits: tuple[int, ...]) -> Moved:
        moved = right(pool, hits)
        return Moved(Pool(moved.pool.blocks, pool.free, moved.pool.index), moved.blocks)

    monkeypatch.setattr(blocks, "acquire", acquire)
    monkeypatch.chdir(tmp_path)
    assert run("--scope", "serving-tiny/miniature", "--property", "OWN-1") == Exit.FALLS
    out = capsys.readouterr().out
    assert "! OWN-1 after " in out
    (trace,) = (tmp_path / "traces" / "failures").glob("OWN-1-search-*.jsonl")
    read = read_trace(trace)
    assert read.verdict is not None
    fallen = [f.fallen.property.id for f in replay_trace(read).fallen]
    assert "OWN-1" in fallen
    assert len(read.actions) <= 6


def test_an_engine_beside_the_specification(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast engine refines a scope; one that loses a budget parts from the specification, on a
    shortest program, which is kept."""
    monkeypatch.chdir(tmp_path)
    assert run("--engine", "fast", "--scope", "serving-tiny/reserved") == Exit.HOLDS
    assert "260 states      1,053 transitions compared" in capsys.readouterr().out
    lost = ("--engine", "tests.broken_engines:BudgetLost", "--scope", "serving-tiny/two-tenants")
    assert run(*lost) == Exit.FALLS
    out = capsys.readouterr().out
    assert "program    8 actions" in out
    (trace,) = (tmp_path / "traces" / "failures").iterdir()
    assert len(read_trace(trace).actions) == 8
    assert row(capsys, *lost)["verdict"] == "diverges"


def test_an_engine_that_is_stopped_early_is_undetermined(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--engine", "fast", "--scope", "serving-tiny/reserved", "--states", "20")
    assert run(*asked) == Exit.UNDETERMINED
    assert "undetermined" in capsys.readouterr().out


TINY = tuple(s for s in named("serving-tiny") if isinstance(s, ServingScope))
KNOWN = {
    "serving-tiny/priority": {"CON-1", "CON-1r", "CON-3"},
    "serving-tiny/prefill-first": {"BUD-2", "LIV-1"},
    "serving-tiny/miniature": {"EVI-1"},
    "serving-tiny/static": {"EVI-1"},
    "serving-tiny/reserved": {"EVI-1"},
    "serving-tiny/full-prompt": {"LIV-1"},
    "serving-tiny/small-pool": {"LIV-1"},
    "serving-tiny/no-victim": {"BUD-2"},
    "serving-tiny/passed-over": {"LIV-1"},
    "serving-tiny/together": {"LIV-1"},
    "serving-tiny/draft-budget": {"BUD-2"},
    "serving-tiny/deadlock": {"LIV-1"},
    "serving-tiny/uncut": {"LIV-1"},
}
"""What falls where the registry says that it may."""


@pytest.mark.parametrize("scope", TINY, ids=[scope.name for scope in TINY])
def test_every_property_on_every_state_of_a_tiny_scope(scope: ServingScope) -> None:
    found = check(scope, Wish())
    assert found.verdict is Says.HOLDS
    assert {a.id for a in found.answers if a.says is Says.KNOWN} == KNOWN.get(scope.name, set())
    assert not {a.id for a in found.answers if a.says is Says.UNDETERMINED}


VARIED = {
    f"serving-tiny/{axis}"
    for axis in [
        "full-prompt",
        "refused",
        "edges",
        "together",
        "uncut",
        "two-drafts",
        "last-of-priority",
        "seats-end",
        "reserved",
        "two-tenants",
        "passed-over",
        "chunks",
        "deadlock",
        "deferred",
        "drafts",
        "prefill-first",
        "static",
        "draft-budget",
    ]
}
"""So many tiny scopes are enough to reach all situations."""


def test_every_situation_is_reached_in_some_tiny_scope() -> None:
    """All marks but those of who has left: a search up to names does not tell a namesake, or who
    leaves twice, from a stranger."""
    reached: set[str] = set()
    assert {scope.name for scope in TINY} > VARIED
    for scope in [scope for scope in TINY if scope.name in VARIED]:
        asking = Asking(scope.system, (), marks=True)
        counts = search(asking, asking).counts
        reached |= {name.removeprefix(MARK) for name in counts}
    assert {mark.name for mark in Mark} - reached == {
        "ID_REUSED_IN_FLIGHT",
        "OUTPUT_OF_NAMESAKE",
        "ABORTS_TWICE",
    }


def test_every_scope_says_what_it_is_there_for() -> None:
    for name, scope in scopes().items():
        assert scope.name == name
        assert scope.about
        if isinstance(scope, PoolScope):
            assert scope.counts
    assert Limits() == Limits(None, None, None, None)
    assert Asking(TINY[0].system).initial().state == TINY[0].system.initial()
