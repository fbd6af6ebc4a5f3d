"""What the commands do with traces, and the skeletons that they write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servecheck.cli import main
from servecheck.trace.lasso import WATCHED
from servecheck.trace.model import Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.chain import Namespace
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33

ROOT = Path(__file__).resolve().parents[1]
FALLS = ROOT / "traces" / "falls"
GOLDEN = ROOT / "traces" / "golden" / "sharing.jsonl"


def test_a_trace_replays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(GOLDEN), str(FALLS / "CON-1.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "10 of 10 actions agree" in out
    assert "CON-1 falls at action 6, as the registry knows" in out
    assert "the recorded verdict, falls CON-1, comes out again" in out


def test_an_edited_trace_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"Scheduled"' in line)
    lines[at] = re.sub(r'"tokens":\d+(?=,"drafts")', '"tokens":99', lines[at], count=1)
    edited = tmp_path / "edited.jsonl"
    edited.write_text("".join(lines), encoding="utf-8")
    assert main(["replay", str(edited)]) == 1
    assert f"line {at + 1}, action" in capsys.readouterr().out


def test_json_of_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--json", str(FALLS / "EVI-1.jsonl")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "holds"
    assert told["traces"][0]["recorded"] == "EVI-1"


def test_traces_or_recordings_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(GOLDEN), "--recording", "x"]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_fall_is_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A smaller trace is written, on which the same property falls."""
    small = tmp_path / "small.jsonl"
    assert main(["shrink", str(FALLS / "CON-1.jsonl"), "-o", str(small)]) == 0
    assert "CON-1 falls on 7 actions of 7" in capsys.readouterr().out
    report = replay_trace(read_trace(small))
    assert report.agrees
    assert report.reproduced


def test_where_nothing_falls_there_is_nothing_to_shrink(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["shrink", str(GOLDEN)]) == 2
    assert main(["shrink", str(GOLDEN), "--property", "OWN-1"]) == 2
    assert main(["shrink", str(GOLDEN), "--property", "NOPE"]) == 2
    assert "there is no property 'NOPE'" in capsys.readouterr().err
    assert "OWN-1" in WATCHED


@pytest.mark.parametrize("level", ["pool", "steps"])
def test_a_skeleton_type_checks_and_fails_by_name(level: str, tmp_path: Path) -> None:
    assert main(["init", "my_engine", "--level", level, "--folder", str(tmp_path)]) == 0
    path = os.pathsep.join(map(str, (ROOT / "spec", ROOT / "impl", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "my_engine.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": path, "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_engine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "CI": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "NotImplementedError" in done.stdout


def test_a_skeleton_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("precious", encoding="utf-8")
    assert main(["init", "mine", "--level", "pool", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == "precious"
    assert main(["init", "not a name", "--level", "pool"]) == 2
    assert "is no name of a module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ["pkg/my_engine"],
            "MODULE 'pkg/my_engine' is a path; write my_engine, with --folder pkg,",
        ),
        (["/my_engine.py"], "MODULE '/my_engine.py' is a path; write my_engine, with --folder /,"),
        (["pkg/"], "'pkg/' is no name of a module"),
        (["pkg.my_engine"], "'pkg.my_engine' is no name of a module"),
        (["mine", "--folder", "none"], "--folder none: it is not there; make it first"),
        (["mine", "--folder", "file"], "--folder file: it is no folder"),
    ],
)
def test_where_a_skeleton_cannot_be_written_is_named(
    words: list[str],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["init", *words, "--level", "pool"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert what in err
    assert [place.name for place in tmp_path.iterdir()] == ["file"]


def test_the_demonstration_finds_shrinks_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--folder", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["actions"] <= 6
    assert any("free queue" in line for line in told["report"])
    assert "<svg" in Path(told["picture"]).read_text(encoding="utf-8")
    assert replay_trace(read_trace(Path(told["trace"]))).agrees
    engine = ["--engine", "servecheck.cli.demo:broken"]
    assert main(["fuzz", *engine, "--program", told["trace"]]) == 1


@pytest.mark.parametrize("command", ["replay", "shrink"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff", b'{"format":"servecheck-trace"', b"[[[[\n", b"{}\n"]
)
def test_a_bad_trace_is_one_line(
    command: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "bad.jsonl"
    if content is not None:
        place.write_bytes(content)
    assert main([command, str(place)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_what_was_found_is_told_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces").write_text("a file in the way", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["fuzz", "--seconds", "20", "--engine", "servecheck.cli.demo:broken"]) == 1
    out = capsys.readouterr().out
    assert "the trace is not written" in out
    assert "free queue" in out


def test_an_engine_s_fall_is_not_the_specification_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--folder", str(tmp_path), "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)["trace"]
    assert main(["shrink", trace]) == 2
    assert "it is an engine that fell" in capsys.readouterr().err
    assert main(["replay", trace]) == 0
    assert "the specification alone" in capsys.readouterr().out


# --- hostile names --------------------------------------------------------------------------

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",  # clears the screen, sets the title
    "line\r\nverdict    holds",  # a line of a report
    "../../etc/passwd\0",
    "\u202ejk\u2066\ufeff",  # right to left
    "[bold red]x[/]",
    "n" * 50_000,
)


def hostile_trace(path: Path) -> Path:
    """A legal program whose requests, adapters and salts have such names, and which is edited: its
    admissions and its last digest do not come out again."""
    machine = Machine(Config(9, 2, 8, 16, 8), VLLM_0_33)
    spaces = [Namespace(name, name) for name in HOSTILE]
    actions: list[Action] = [
        Submit(n, (1, 2, 3), 1, s) for n, s in zip(HOSTILE, spaces, strict=True)
    ]
    actions += [Schedule(), Complete(tuple(Output(n, (4,)) for n in HOSTILE[:4]))]
    record(path, machine, actions, Verdict("falls", HOSTILE[0], HOSTILE[1]), snapshot_every=1)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"hit_tokens":0', '"hit_tokens":2'), encoding="utf-8")
    return path


COMMANDS_ON_TRACES = (
    ("replay",),
    ("replay", "--engine", "fast"),
    ("replay", "--engine", "fast", "--alone"),
    ("replay", "--engine", "fast", "--alone", "--level", "state"),
    ("replay", "--engine", "tests.broken_engines:HitStaysFree"),
    ("replay", "--engine", "tests.broken_engines:HeadFirst", "--alone"),
    ("fuzz", "--engine", "tests.broken_engines:HeadFirst", "--program"),
    ("shrink",),
    ("render",),
)


@pytest.mark.parametrize("words", COMMANDS_ON_TRACES, ids=" ".join)
@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_hostile_names_never_reach_the_terminal_raw(
    words: tuple[str, ...],
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    path = hostile_trace(tmp_path / "x" / "\x1b[31m\u202etrace.jsonl")
    code = main([*words, str(path), *(["--json"] if as_json else [])])
    out, err = capsys.readouterr()
    assert code in (0, 1, 2, 3), err
    assert out or err
    shown = f"{out}{err}"
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert as_json or max(map(len, shown.splitlines())) <= 1_300
    assert not any(line == "verdict    holds" for line in shown.splitlines())
    # Nor do they lead out of the folder.
    assert {p.parent for p in tmp_path.rglob("*") if p.is_file()} <= {tmp_path, tmp_path / "x"}
