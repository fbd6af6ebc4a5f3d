"""Stories about starts that outlive a campaign: a folder of programs that led to what is rare."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve

from servecheck.cli import main
from servecheck.cli.engines import subject_of
from servecheck.cli.terminal import Exit
from servecheck.fuzz.campaign import Verdict, campaign
from servecheck.fuzz.corpus import A_MARK, Corpus, best_of, into, taught, walked
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.legs import Orders
from servecheck.fuzz.long import Budget, long_campaign
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.subject import Subject
from servecheck.marks import Mark
from servecheck.trace.model import TraceError
from servecheck.trace.read import read_trace
from servespec.actions import Abort, Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33
from tests import broken_engines as broken
from tests.test_retry import ticking

MACHINE = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
SUBMIT = Submit("a", (0, 1, 2), 1)
IN_FLIGHT: tuple[Action, ...] = (SUBMIT, Schedule(), Abort("a"))
"""The shortest way to ABORTS_IN_FLIGHT."""
LONGER: tuple[Action, ...] = (SUBMIT, Schedule(), Complete((Output("a", (0,)),)))


def start(actions: tuple[Action, ...], machine: Machine = MACHINE) -> Start:
    return Start(machine, 3, actions)


def learned(count: int = 12) -> Guide:
    """What a guide knows after some walks."""
    guide = Guide()
    for number in range(count):
        guide.learn(Wanderer(number, (), guide=guide).go(40))
    return guide


def kept(folder: Path, *starts: Start) -> Corpus:
    """A corpus, after a campaign that has learned these."""
    corpus = Corpus.read(folder)
    corpus.keep(best_of(taught(Guide(), starts)), seed=7)
    return corpus


# --- the folder -----------------------------------------------------------------------------------


def test_what_was_learned_is_there_the_next_time(tmp_path: Path) -> None:
    """Given a campaign that came to an abort in flight; then the next one knows the way."""
    kept(tmp_path, start(IN_FLIGHT))
    again = Corpus.read(tmp_path)
    assert start(IN_FLIGHT) in again.starts.values()
    guide = taught(Guide(), again.starts.values())
    assert guide.starts[Mark.ABORTS_IN_FLIGHT][MACHINE].actions == IN_FLIGHT


def test_a_start_is_an_ordinary_trace(tmp_path: Path) -> None:
    kept(tmp_path, start(IN_FLIGHT))
    (file,) = (f for f in tmp_path.iterdir() if len(read_trace(f).actions) == len(IN_FLIGHT))
    trace = read_trace(file)
    assert file.name.startswith("start-")
    assert (trace.machine, trace.actions, trace.header.seed) == (MACHINE, IN_FLIGHT, 7)


def test_the_corpus_reaches_every_mark_that_the_campaign_did(tmp_path: Path) -> None:
    guide = learned()
    Corpus.read(tmp_path).keep(best_of(guide), seed=0)
    again = taught(Guide(), Corpus.read(tmp_path).starts.values())
    assert again.starts.keys() >= guide.starts.keys()
    for mark, known in guide.starts.items():
        shortest = min(len(s.actions) for s in known.values())
        assert min(len(s.actions) for s in again.starts[mark].values()) <= shortest


def test_nothing_new_nothing_written(tmp_path: Path) -> None:
    """Given a campaign that learned what the last one had learned; then nothing is added. What a
    longer start does on its way may make a file needless, once."""
    best, told = best_of(learned()), []
    for _ in range(3):
        corpus = Corpus.read(tmp_path)
        corpus.keep(best, seed=0)
        told.append((corpus.told.added, corpus.told.removed))
    (added, _), second, third = told
    assert added > 10
    assert second[0] == 0
    assert third == (0, 0)


def test_of_a_mark_only_the_shortest_stay(tmp_path: Path) -> None:
    """Given as many ways to an abort in flight as are kept, each with steps before it that lead
    nowhere; when a shorter one is learned, then the longest goes."""
    best: dict[Mark, list[Start]] = {}
    ways = [start((*(Schedule(), Complete()) * n, *IN_FLIGHT)) for n in range(A_MARK + 1)]
    into(best, Mark.ABORTS_IN_FLIGHT, reversed(ways[1:]))
    corpus = Corpus.read(tmp_path)
    corpus.keep(best, seed=0)
    later = Corpus.read(tmp_path)
    assert set(later.starts.values()) == set(ways[1:])
    later.best = {Mark.ABORTS_IN_FLIGHT: later.best[Mark.ABORTS_IN_FLIGHT]}
    later.keep({Mark.ABORTS_IN_FLIGHT: ways[:1]}, seed=0)
    assert (later.told.added, later.told.removed) == (1, 1)
    assert set(Corpus.read(tmp_path).starts.values()) == set(ways[:-1])


def test_two_campaigns_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Given two that have read the same; when both keep what they have learned, then all of it is
    there."""
    one, other = Corpus.read(tmp_path), Corpus.read(tmp_path)
    elsewhere = Machine(Config(5, 2, 8, 16, 4), MINIATURE)
    one.keep({Mark.ABORTS_IN_FLIGHT: [start(IN_FLIGHT)]}, seed=0)
    other.keep({Mark.ABORTS_IN_FLIGHT: [start(IN_FLIGHT, elsewhere)]}, seed=1)
    assert {s.machine for s in Corpus.read(tmp_path).starts.values()} == {MACHINE, elsewhere}


def test_what_cannot_be_read_is_told_and_left(tmp_path: Path) -> None:
    kept(tmp_path, start(LONGER))
    longest = max(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    header, *_, complete, _, end = longest.read_text(encoding="utf-8").split("\n")
    (tmp_path / "start-a.jsonl").write_text("no trace\n", encoding="utf-8")
    illegal = "\n".join((header, complete.replace('"n":2', '"n":0'), end))
    (tmp_path / "start-b.jsonl").write_text(illegal, encoding="utf-8")
    (tmp_path / "notes.jsonl").write_text("somebody else's\n", encoding="utf-8")
    os.mkfifo(tmp_path / "start-c.jsonl")
    again = kept(tmp_path, start(LONGER))
    no_trace, not_legal, no_file = sorted(again.told.useless)
    assert no_trace.startswith(f"{tmp_path / 'start-a.jsonl'}:1: ")
    assert not_legal.startswith(f"{tmp_path / 'start-b.jsonl'}: not legal: ")
    assert no_file.startswith(f"{tmp_path / 'start-c.jsonl'}: is no regular file; ")
    assert {"start-a.jsonl", "start-b.jsonl", "notes.jsonl"} <= {f.name for f in tmp_path.iterdir()}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("", encoding="utf-8")
    with pytest.raises(TraceError, match="is no folder and cannot be made one"):
        Corpus.read(tmp_path / "x")


def test_a_start_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    corpus = Corpus.read(tmp_path / "corpus")
    corpus.folder.rmdir()
    corpus.folder.write_text("", encoding="utf-8")
    corpus.keep({Mark.ABORTS_IN_FLIGHT: [start(IN_FLIGHT)]}, seed=0)
    (what,) = corpus.told.useless
    assert "cannot be written" in what


# --- campaigns ------------------------------------------------------------------------------------


def test_only_starts_in_worlds_of_the_campaign_are_taught(tmp_path: Path) -> None:
    """Of two starts one is under VLLM_0_33: the picky engine takes no other, and of the sizes it
    takes, so many blocks are those of one."""
    other = Machine(Config(5, 2, 8, 16, 4), MINIATURE)
    kept(tmp_path, start(IN_FLIGHT), start(IN_FLIGHT, other))
    corpus, picky = Corpus.read(tmp_path), Subject.of(broken.Picky)
    policies = [
        {s.machine.policy for s in corpus.fitting(policy, sizes, subject)}
        for policy, sizes, subject in (
            (None, {}, None),
            (MINIATURE, {}, None),
            (None, {"num_blocks": 6}, None),
            (None, {}, picky),
        )
    ]
    assert policies == [{VLLM_0_33, MINIATURE}, {MINIATURE}, set(), {VLLM_0_33}]


def test_a_campaign_keeps_what_it_learns_and_the_next_begins_with_it(tmp_path: Path) -> None:
    first = campaign(seconds=25, clock=ticking(), corpus=tmp_path)
    assert first.verdict is Verdict.HOLDS
    assert first.taught is not None
    assert first.taught.read == 0
    assert first.taught.added == len(list(tmp_path.iterdir())) > 0
    second = campaign(seconds=25, clock=ticking(), corpus=tmp_path, profile="STATIC")
    assert second.taught is not None
    assert second.taught.read == first.taught.added
    assert second.taught.fit < second.taught.read


def test_a_long_campaign_learns_the_same_in_any_number_of_processes(tmp_path: Path) -> None:
    engines = partial(subject_of, "fast", None, None, ())
    orders = Orders(engines, moves=20, properties=(), leg=150)
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        found = [
            long_campaign(evolve(orders, seed=seed), Budget(steps=400), jobs, corpus=folder)
            for seed in (1, 2)
        ]
        assert all(f.verdict is Verdict.HOLDS for f in found)
    one, two = (
        {f.name: f.read_bytes() for f in (tmp_path / str(jobs)).iterdir()} for jobs in (1, 2)
    )
    assert one == two
    assert len(one) > 10


def test_the_command_tells_of_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fuzz", "--driver", "walks", "--steps", "200", "--corpus", "here"]
    assert main(words) == Exit.HOLDS
    assert "corpus: 0 starts read, 0 fit, " in capsys.readouterr().out
    assert main([*words, "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)["corpus"]
    assert told["read"] == told["fit"] > 0
    assert told["useless"] == []


def test_a_start_that_is_walked_reaches_what_it_is_for() -> None:
    assert walked(start(IN_FLIGHT)).marks[Mark.ABORTS_IN_FLIGHT] == 1
