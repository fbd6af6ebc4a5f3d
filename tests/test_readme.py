"""What the README shows of commands is what they print; seconds may differ."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from servecheck.cli import main
from servespec.theory.devices import DEVICES
from servespec.theory.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^\$ \S*servecheck (.*)\n((?:(?!```|\$ ).*\n)+)", re.MULTILINE)
LEFT_OUT = re.compile(r"  \.\.\. (\d+) lines more")
COMMANDS = ("arithmetic", "check", "compare", "miniature", "replay", "speculation")
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
