"""Stories about input that means ill, or is a slip: empty values, numbers without end, files of
something else, folders that cannot be written, and signals that come when they like.

Whatever happens ends with one line, what and where and what to do, and with the exit code that says
it; what was found is told, and what was there stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from attrs import evolve

from servecheck import document, processes
from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.trace.model import TraceError, Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.write import record, replace
from servecheck.zoo import programs
from servecheck.zoo.matrix import chosen, matrix
from servecheck.zoo.rows import ResultsError, append, read_rows
from servecheck.zoo.run import Plan
from servespec.actions import Schedule
from servespec.errors import ActionDisabled
from tests.test_trace import small_disk
from tests.test_zoo import ROOT
from tests.test_zoo_runs import ENVIRONMENT, running, some_row

HIT = "hit-stays-free"
SCOPE = ("check", "--scope", "tiny-pool-small")


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that is said."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["fuzz", "--corpus", ""],
        ["fuzz", "--corpus="],
        ["zoo", "--keep", ""],
        ["zoo", "--traces", "", "--list"],
        ["check", "--junit", ""],
        ["replay", ""],
        ["render", "x.jsonl", "-o", ""],
    ],
    ids=" ".join,
)
def test_what_is_empty_is_never_the_current_folder(
    args: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a variable that was not set; then nothing is searched, read or written for it."""
    monkeypatch.chdir(tmp_path)
    assert main(args) == Exit.BAD_INPUT
    assert " is empty; give it a value, or leave it out" in line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["zoo", "--seconds", "inf"],
        ["zoo", "--seconds", "1e308"],
        ["zoo", "--seconds", "nan"],
        ["zoo", "--seeds", "99999999999"],
        ["fuzz", "--seconds", "inf"],
        ["fuzz", "--moves", "99999999999"],
        ["fuzz", "--jobs", "1000", "--driver", "walks"],
        ["zoo", "--jobs", "1000"],
        ["check", "--jobs", "1000"],
    ],
    ids=" ".join,
)
def test_what_would_never_end_or_take_all_memory_is_refused(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == Exit.BAD_INPUT
    assert args[1] in line(capsys)


def test_an_engine_that_takes_all_memory_is_one_whole_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a factory whose error says nothing but its name."""
    assert main(["fuzz", "--seconds", "1", "--engine", "tests.test_hostile:greedy"]) != Exit.HOLDS
    out, err = capsys.readouterr()
    assert "the engine cannot be made: MemoryError" in out + err
    assert "MemoryError: " not in out + err


def greedy(config: object, policy: object) -> object:
    """No engine."""
    raise MemoryError


# --- files of rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign", [b"[" * 10_000, b"a letter, without an end of its last line", b"\xff\xfe\x00"]
)
@pytest.mark.parametrize("before", [b"", b"rows"])
def test_a_file_of_something_else_stays_as_it_is(
    foreign: bytes, before: bytes, tmp_path: Path
) -> None:
    """Given a last line that is no row and no part of one; then it is refused, and not cut off."""
    file = tmp_path / "rows.jsonl"
    if before:
        append(file, some_row())
    held = (file.read_bytes() if before else b"") + foreign
    file.write_bytes(held)
    for use in (lambda: list(read_rows(file)), lambda: append(file, some_row(1))):
        with pytest.raises(ResultsError, match=f"rows.jsonl:{2 if before else 1}: this is no row"):
            use()
    assert file.read_bytes() == held


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"killed"', '"nonsense"', "verdict"),
        ('"actions": 60000', '"actions": -1', "-1 in actions"),
        ('"seed": 0', '"seed": NaN', "not JSON"),
        ('"entry"', '"e\\u001b[1m"', "there is no such field"),
        ('"states": ', '"states": 1e999, "x": ', "not JSON"),
    ],
)
def test_a_row_that_is_none_is_one_line_that_says_where(
    old: str, new: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    append(file, evolve(some_row(), actions=60_000))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    held = file.read_text()
    assert main(["zoo", "--entry", HIT, "--resume", str(file)]) == Exit.BAD_INPUT
    said = line(capsys)
    assert f"{file.name}:1" in said
    assert where in said
    assert "('" not in said
    assert file.read_text() == held


def test_where_rows_and_programs_go_is_looked_at_before_the_first_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a file where a folder would be; then no minute is spent on a row for nothing."""
    tried: list[str] = []
    monkeypatch.setattr("servecheck.zoo.matrix.tried", lambda name, plan: tried.append(name))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ResultsError, match="cannot be written"):
        matrix(chosen([HIT]), Plan(), results=file / "rows.jsonl")
    with pytest.raises(TraceError, match="is no folder that can be written to"):
        matrix(chosen([HIT]), Plan(keep=file))
    assert tried == []


# --- files that are written ----------------------------------------------------------------------


def test_a_program_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """Given a trace that is kept, and a disk that is full, or a program that is not legal; then the
    old trace stays, whole, and nothing lies beside it."""
    program, file = programs.PROGRAMS[HIT], tmp_path / "kept.jsonl"
    record(file, program.machine, program.actions, Verdict("holds"))
    held = file.read_bytes()
    with small_disk(500), pytest.raises(TraceError, match="cannot be written"):
        replace(file, program.machine, program.actions, Verdict("holds"))
    with pytest.raises(ActionDisabled):
        replace(file, program.machine, (*program.actions, *[Schedule()] * 3), Verdict("holds"))
    assert file.read_bytes() == held
    assert list(tmp_path.iterdir()) == [file]
    assert read_trace(file).actions == program.actions


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    monkeypatch.setattr("servecheck.document.documents", lambda: {page: "x" * 1000})
    with small_disk(500), pytest.raises(OSError, match="too large"):
        document.main([])
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]
    page.write_bytes(b"\xff\xfe")
    assert document.main(["--check"]) == Exit.FALLS


@pytest.mark.parametrize("module", ["servecheck.document", "servecheck.zoo.programs"])
@pytest.mark.parametrize("words", [["--chek"], ["a", "b"], ["--check", "--check"]], ids=" ".join)
def test_a_slip_writes_nothing(module: str, words: list[str], tmp_path: Path) -> None:
    """Given an argument that there is not; then there is one line with the usage, and no file."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (Exit.BAD_INPUT, "")
    assert f"python -m {module}" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--junit", "--matrix", "--graph"])
def test_where_answers_go_is_looked_at_before_the_search(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SCOPE, option, str(tmp_path)]) == Exit.BAD_INPUT
    assert "is a folder; name a file in it" in line(capsys)
    assert main([*SCOPE, option, str(tmp_path / "no" / "x.dot")]) == Exit.BAD_INPUT
    assert "there is no such folder" in line(capsys)


@pytest.mark.parametrize("option", ["--junit", "--matrix"])
def test_answers_are_told_though_their_file_is_not_written(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a disk that fills up while the search goes on."""
    with small_disk(10):
        assert (
            main([*SCOPE, "--jobs", "1", "--json", option, str(tmp_path / "x.dot")])
            == Exit.BAD_INPUT
        )
    out, err = capsys.readouterr()
    assert json.loads(out)["states"] == 1070
    assert "cannot be written" in err


def test_what_a_search_found_is_told_though_it_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a file where the folder of failures would be; then the shortest program is told all the
    same, by `check` as by the demonstration, and neither says that there was nothing."""
    monkeypatch.chdir(tmp_path)
    Path("traces").touch()
    check = ["check", "--scope", "serving-tiny/priority", "--engine", f"zoo:{HIT}"]
    assert main(check) == Exit.FALLS
    out = capsys.readouterr().out
    assert "the trace is not written: traces/failures" in out
    assert "program" in out
    assert main(["demo", "--folder", "traces"]) == Exit.BAD_INPUT
    assert "the trace is not written" in capsys.readouterr().err


# --- signals -------------------------------------------------------------------------------------


def command(*words: str | Path, group: bool = True) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "servecheck", *map(str, words)],
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=group,
        cwd=ROOT,
    )


def nobody_is_left(group: int) -> bool:
    deadline = monotonic() + 30
    while running(group) and monotonic() < deadline:
        sleep(0.05)
    return running(group) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_who_is_asked_to_end_tells_what_is_known_and_leaves_nobody(
    sent: signal.Signals, tmp_path: Path
) -> None:
    """Given a run in two processes; when the first one is asked to end, then it ends as after
    Ctrl-C; when it is killed, then the others end as well, and the rows are kept."""
    file = tmp_path / "rows.jsonl"
    names = (HIT, "let-go-twice", "limit-kept-over-preemption")
    words = [word for name in names for word in ("--entry", name)]
    child = command("zoo", *words, "--jobs", "2", "--seconds", "10000", "--json", "--resume", file)
    assert child.stderr is not None
    assert child.stderr.readline().startswith(f"{HIT}, seed 0: killed")
    os.kill(child.pid, sent)
    out, err = child.communicate(timeout=60)
    if sent == signal.SIGTERM:
        assert (child.returncode, err.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
        assert json.loads(out)["entries"] == 1
    assert [row.entry for row in read_rows(file)] == [HIT]
    assert nobody_is_left(child.pid)


def test_who_hears_no_ctrl_c_still_ends_when_asked() -> None:
    """Given a command in the background of a script, where Ctrl-C is ignored."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from servecheck.cli import terminal\n"
        "def run():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return 0\n"
        "with terminal.ending_when_asked(): sys.exit(terminal.settled(run))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (Exit.INTERRUPTED, "interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_processes_are_born_deaf() -> None:
    """Given a process that is started while Ctrl-C is unheard; then it has it blocked from its
    first instruction, and the one that starts it hears it afterwards."""
    reads = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    said: list[bytes] = []

    def start() -> None:
        with processes.unheard():
            signal.raise_signal(signal.SIGINT)
            said.append(subprocess.check_output([sys.executable, "-c", reads]))

    with pytest.raises(KeyboardInterrupt):
        start()
    assert said == [b"True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
