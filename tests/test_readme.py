"""What the README shows of commands is what they print; seconds may differ."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from servecheck.cli import main
from servecheck.marks import Mark
from servecheck.zoo import ENTRIES
from servecheck.zoo.document import RESULTS, pairs_of
from servecheck.zoo.seeds import totals
from servespec.theory.devices import DEVICES
from servespec.theory.models import MODELS
from tests.mutation.score import read_score

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^\$ \S*servecheck (.*)\n((?:(?!```|\$ ).*\n)+)", re.MULTILINE)
LEFT_OUT = re.compile(r"  \.\.\. (\d+) lines more")
COMMANDS = ("arithmetic", "check", "compare", "miniature", "replay", "speculation")
WORDS = {7: "seven", 10: "ten"}
SECONDS = re.compile(r" *\d+\.\d s\b")
THERE = {
    said.group(1): said.group(2).splitlines()
    for said in SHOWN.finditer(README)
    if said.group(1).split()[0] in COMMANDS
}


@pytest.mark.parametrize("command", THERE)
def test_a_command_prints_what_is_shown(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line; "... 3 lines more" stands for three, and at the end for all that is left."""
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    for line in THERE[command]:
        left_out = LEFT_OUT.fullmatch(line)
        if left_out is None:
            assert timeless(next(printed)) == timeless(line)
        else:
            for _ in range(int(left_out[1])):
                next(printed)
    assert list(printed) == []


def timeless(line: str) -> str:
    return SECONDS.sub(" # s", line)


def test_each_of_them_is_shown() -> None:
    assert {command.split()[0] for command in THERE} == set(COMMANDS)
    assert f"{len(MODELS)} models on {len(DEVICES)} devices" in README


def test_the_figures_of_the_zoo_are_those_of_its_rows() -> None:
    """Entries, pairs, who found them, how soon, and how late at the latest."""
    found = totals([row for rows in pairs_of(RESULTS).values() for row in rows])
    masked = sum(bool(entry.masked) for entry in ENTRIES.values())
    told = " ".join(README.split())
    assert (
        f"{len(ENTRIES) - masked} faults of real engines, tried from {WORDS[found.seeds]}" in told
    )
    assert f"{found.compared:,} of {found.pairs:,} pairs are found by comparison" in told
    assert f"within {found.steps.middle:,} steps, the latest after {found.steps.worst:,}" in told
    assert f"({found.cpu.worst:.1f} CPU seconds)" in told
    assert found.killed == found.pairs


def test_the_figures_of_mutants_are_those_of_the_score() -> None:
    scores = read_score().values()
    run = sum(score.run for score in scores)
    alike = sum(score.equivalent for score in scores)
    told = " ".join(README.split())
    assert f"{run - alike:,} of {run:,} changes are noticed, the other {alike} are" in told
    assert not any(score.unexplained for score in scores)


def test_as_many_marks_are_shown_as_there_are() -> None:
    assert f"marks, {len(Mark)} of {len(Mark)} reached" in README
