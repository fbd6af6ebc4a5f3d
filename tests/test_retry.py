"""Stories about programs that once fell: the next campaign begins with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from servecheck.cli import main
from servecheck.cli.engines import subject_of
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.protocol import EngineFactory
from servecheck.fuzz import retry
from servecheck.fuzz.campaign import Summary, Verdict, campaign
from servecheck.fuzz.legs import Orders
from servecheck.fuzz.long import Budget, long_campaign
from servecheck.trace.model import Verdict as Fell
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33
from tests import broken_engines as broken

ROOT = Path(__file__).resolve().parents[1]
FAILURES = Path("failures")

MACHINE = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
SERVED: tuple[Action, ...] = (
    Submit("a", (0, 1, 0, 1), 1),
    Schedule(),
    Complete((Output("a", (1,)),)),
)
"""a fills two blocks, is served, and lets them go: which goes first into the queue is a rule."""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Failing programs are written into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


def ticking() -> Callable[[], float]:
    """A clock by which each look takes a second."""
    seconds = count()
    return lambda: float(next(seconds))


def fuzzed(engine: EngineFactory, failures: Path | None = FAILURES) -> Summary:
    return campaign(seconds=12, clock=ticking(), following=engine, failures=failures)


def fell_once(name: str = "once", machine: Machine = MACHINE) -> Path:
    """A program that lies there."""
    path = FAILURES / f"{name}.jsonl"
    record(path, machine, SERVED)
    return path


def test_what_fell_is_tried_first() -> None:
    """Given the program on which an engine once fell; when that engine is fuzzed again, then it
    falls on it at once, and the program lies there once."""
    once = fell_once()
    found = fuzzed(broken.HeadFirst)
    assert found.verdict is Verdict.DIVERGES
    assert (found.runs, found.steps) == (1, 3)
    assert found.retried is not None
    assert (found.retried.tried, found.retried.fell) == (1, once)
    assert found.seen is not None
    assert found.seen.followed == 2  # the third is the one at which it parts
    again = fuzzed(broken.HeadFirst)
    assert again.trace == found.trace
    assert len(list(FAILURES.iterdir())) == 2  # the one by hand, and the one by its digest


def test_an_engine_that_was_mended_is_searched_as_ever() -> None:
    fell_once()
    found, without = fuzzed(FastLoop), fuzzed(FastLoop, failures=None)
    assert found.verdict is Verdict.HOLDS
    assert found.retried is not None
    assert (found.retried.tried, found.retried.fell) == (1, None)
    assert without.retried is None
    assert found.runs > 0
    assert not found.moves - without.moves  # looking there has taken some of its time
    assert found.seen is not None
    assert found.seen.followed == found.steps


def test_what_cannot_be_tried_is_told_and_passed_over() -> None:
    """Given a file that is no trace, a program that completes a step that nobody made, and one that
    is legal; when an engine is fuzzed, then the first two are told, and the third is tried."""
    good = fell_once("c")
    header, *_, complete, end = good.read_text(encoding="utf-8").split("\n")
    (FAILURES / "a.jsonl").write_text("no trace\n", encoding="utf-8")
    illegal = "\n".join((header, complete.replace('"n":2', '"n":0'), end))
    (FAILURES / "b.jsonl").write_text(illegal, encoding="utf-8")
    retried = fuzzed(broken.HeadFirst).retried
    assert retried is not None
    assert retried.fell == good
    no_trace, not_legal = retried.useless
    assert no_trace.startswith(f"{FAILURES / 'a.jsonl'}:1: ")
    assert not_legal.startswith(f"{FAILURES / 'b.jsonl'}: no longer legal: ")


def test_what_is_no_file_is_told_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a pipe with nobody at its other end among the programs, of which two are tried; then it
    is told, and nobody waits for it."""
    monkeypatch.setattr(retry, "MOST", 2)
    fell_once("b")
    fell_once("c")
    os.mkfifo(FAILURES / "a.jsonl")
    retried = fuzzed(FastLoop).retried
    assert retried is not None
    assert (retried.tried, retried.left) == (2, 0)
    (pipe,) = retried.useless
    assert pipe.startswith(f"{FAILURES / 'a.jsonl'}: is no regular file; ")


def test_a_folder_that_cannot_be_listed_is_told() -> None:
    FAILURES.write_text("", encoding="utf-8")
    found = fuzzed(FastLoop)
    assert found.verdict is Verdict.HOLDS
    assert found.retried is not None
    (useless,) = found.retried.useless
    assert useless.startswith(f"{FAILURES}: cannot be listed (")


def test_a_program_of_another_engine_may_not_fit() -> None:
    """The picky engine is VLLM_0_33 and nothing else."""
    fell_once(machine=Machine(Config(5, 2, 8, 16, 4), MINIATURE))
    found = fuzzed(broken.Picky)
    assert found.verdict is Verdict.HOLDS
    assert found.retried is not None
    assert (found.retried.tried, found.retried.unfit) == (0, 1)


def test_not_more_are_tried_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MOST", 2)
    for name in "abc":
        fell_once(name)
    retried = fuzzed(FastLoop).retried
    assert retried is not None
    assert (retried.tried, retried.left) == (2, 1)


def test_where_nobody_asks_for_what_fell_it_is_not_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given programs on which OWN-1 fell, and on which an engine diverged; when another property is
    asked of the specification alone, then neither is tried, which is told: that they do not fall
    would say nothing. Whoever asks for OWN-1, or compares an engine, tries them."""
    for fell in ("OWN-1", "LOCKSTEP"):
        record(
            Path("traces/failures") / f"{fell}.jsonl",
            MACHINE,
            SERVED,
            Fell("falls", fell, "it fell"),
        )
    words = ["fuzz", "--seconds", "0.2", "--properties"]
    for options, tried, left in (
        (["LRU-3", "--spec-only"], 0, 2),
        (["OWN-1", "--spec-only"], 1, 1),
        (["LRU-3"], 1, 1),
        (["all"], 2, 0),
    ):
        main([*words, *options, "--json"])
        retried = json.loads(capsys.readouterr().out)["retried"]
        assert (retried["tried"], retried["left"]) == (tried, left)
    main([*words, "LRU-3", "--spec-only"])
    told = "tried first: 0 programs that once fell, none falls, 2 not tried"
    assert told in capsys.readouterr().out.splitlines()


def test_an_engine_that_dies_of_one_is_told_with_it() -> None:
    """The mortal engine is gone at its second plan."""
    record(FAILURES / "once.jsonl", MACHINE, (*SERVED, Schedule()))
    found = fuzzed(broken.Mortal)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.notes[0].startswith("the engine is gone: ")
    told = [line.split()[1].rstrip(":") for line in found.notes[-4:]]
    assert told == ["submit", "schedule", "complete", "schedule"]


def test_a_long_campaign_tries_them_too() -> None:
    once = fell_once()
    engines = partial(subject_of, "tests.broken_engines:HeadFirst", None, None, ())
    found = long_campaign(Orders(engines), Budget(steps=1000), failures=FAILURES)
    assert found.verdict is Verdict.DIVERGES
    assert (found.runs, found.steps) == (1, 3)
    assert found.retried is not None
    assert found.retried.fell == once


def test_the_command_tells_what_was_tried(capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("traces/failures/once.jsonl"), MACHINE, SERVED)
    words = ["fuzz", "--seconds", "1", "--driver", "walks", "--engine"]
    assert main([*words, "fast"]) == Exit.HOLDS
    assert "tried first: 1 program that once fell, none falls\n" in capsys.readouterr().out
    assert main([*words, "tests.broken_engines:HeadFirst", "--json"]) == Exit.FALLS
    told = json.loads(capsys.readouterr().out)
    assert told["retried"] == {
        "tried": 1,
        "fell": "traces/failures/once.jsonl",
        "unfit": 0,
        "useless": [],
        "left": 0,
    }
