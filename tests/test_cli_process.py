"""Stories about `servecheck fuzz` and engines that behave badly: they are silent, they end the
checker's process, they answer nonsense; somebody interrupts; the disk is full. Each has a line and
an exit code, and none is waited for longer than was said.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.protocol import Capabilities, Level, SeenPlan, SeenPool, SeenState
from servespec.config import Config
from servespec.policy import Policy
from tests.test_trace import small_disk

ROOT = Path(__file__).resolve().parents[1]
POOL = (ROOT / "examples" / "pool_engine.py").read_text(encoding="utf-8")
SILENT = shlex.join([sys.executable, "-c", "import time; time.sleep(600)"])
FACTORY = "{python} -m servecheck.engines.serve {name}"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Failing programs are written into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    places = (ROOT, ROOT / "spec", ROOT / "impl")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    return tmp_path


def fuzz(*words: str, seconds: str = "60") -> int:
    return main(["fuzz", "--seconds", seconds, *words])


def changed(folder: Path, where: str, what: str) -> str:
    """The example as a command, one line of it another."""
    assert where in POOL
    script = folder / "changed.py"
    script.write_text(POOL.replace(where, what), encoding="utf-8")
    return shlex.join([sys.executable, str(script)])


TAKES = "            self.refs[block] += 1"
"""The line of the example that references a hit."""


# --- how long is waited ---------------------------------------------------------------------


def test_a_silent_engine_is_given_the_time_that_was_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fuzz("--command", SILENT, "--timeout", "0.3") == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "no answer to hello (request 0) within 0.3 s" in err


def test_a_silent_engine_does_not_outlast_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    """Two seconds more than the search has, though a start may take sixty."""
    assert fuzz("--command", SILENT, seconds="0") == Exit.BAD_INPUT
    assert "no answer to hello (request 0) within 2 s" in capsys.readouterr().err


def test_an_engine_that_falls_silent_is_gone(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    command = changed(elsewhere, TAKES, "            import time; time.sleep(600)")
    assert fuzz("--command", command, "--timeout", "1") == Exit.UNDETERMINED
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("undetermined: the engine is gone, and had not diverged")
    assert "no answer to acquire" in said
    assert "within 1 s" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ("--command", "x", "--timeout", "0"),
            "--timeout 0 is no time to wait; give seconds above",
        ),
        (("--command", "x", "--timeout", "-1"), "--timeout -1 is no time to wait"),
        (("--command", "x", "--timeout", "nan"), "--timeout nan is no time to wait"),
        (("--command", "x", "--timeout", "inf"), "--timeout inf is no time to wait"),
        (("--engine", "fast", "--timeout", "1"), "--timeout is about a process; name it by --com"),
        (("--timeout", "1"), "--timeout is about a process"),
        (("--spec-only", "--timeout", "1"), "--spec-only leaves every engine out"),
    ],
)
def test_a_time_that_is_none_is_named(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(*words) == Exit.BAD_INPUT
    assert what in capsys.readouterr().err


# --- engines that would end the checker, or answer nonsense ---------------------------------


class Leaves(FastLoop):
    """It ends the process that it is in, as if all were well."""

    def schedule(self) -> NoReturn:
        sys.exit(0)


class LeavesAtOnce:
    """It does so when it is made."""

    capabilities = Capabilities("leaves", "0", Level.STATE)

    def __init__(self, config: Config, policy: Policy) -> None:
        sys.exit(0)


class Mute(FastLoop):
    """It makes plans, and does not show them."""

    def schedule(self) -> SeenPlan:
        super().schedule()
        return None  # type: ignore[return-value]


class Mixed(FastLoop):
    """What it shows of its pool is of the wrong kind."""

    def see_state(self) -> SeenState:
        return SeenState(SeenPool(free="all of it"))  # type: ignore[arg-type]


MINE = "tests.test_cli_process"


def test_an_engine_that_leaves_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 of an engine is not that of the checker."""
    assert fuzz("--engine", f"{MINE}:Leaves") == Exit.FALLS
    assert "answer: SystemExit: 0" in capsys.readouterr().out


def test_an_engine_that_leaves_when_it_is_made_does_not_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fuzz("--engine", f"{MINE}:LeavesAtOnce") == Exit.BAD_INPUT
    assert "the engine cannot be made: SystemExit: 0" in capsys.readouterr().err


def test_a_module_that_leaves_does_not_pass(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "leaving.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(elsewhere))
    assert fuzz("--engine", "leaving:Engine") == Exit.BAD_INPUT
    assert "leaving does not import: SystemExit: 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "observed"),
    [
        ("Mute", "observed answer: AttributeError: 'NoneType'"),
        ("Mixed", "observed free queue: all"),
    ],
)
def test_nonsense_is_a_divergence(
    engine: str, observed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz("--engine", f"{MINE}:{engine}") == Exit.FALLS
    assert observed in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("no.such:thing", "error: cannot take no.such:thing: No module named 'no'"),
        (
            "tests.broken_engines:NO_FACTORY",
            "error: tests.broken_engines:NO_FACTORY cannot be call",
        ),
        ("thing", "error: 'thing' is not of the form module:factory"),
        ("tests.broken_engines:Stillborn", "answered hello with an error: RuntimeError: no memory"),
        ("tests.broken_engines:Liar", "liar says that it has level STATE, and lacks methods of it"),
    ],
)
def test_a_factory_of_a_process_that_is_none(
    name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = FACTORY.format(python=sys.executable, name=name)
    assert fuzz("--command", command) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert what in err


# --- a full disk ----------------------------------------------------------------------------


def test_what_was_found_is_told_though_it_cannot_be_written(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    (elsewhere / "traces").write_text("a file where the folder would be", encoding="utf-8")
    assert fuzz("--engine", "tests.broken_engines:HeadFirst") == Exit.FALLS
    out = capsys.readouterr().out
    assert "the trace is not written: " in " ".join(out.split())
    assert "\nverdict    diverges\n" in out
    assert "\nreplay     not recorded\n" in out


def test_a_full_disk_is_told(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    with small_disk(900):
        assert fuzz("--engine", "tests.broken_engines:HeadFirst") == Exit.FALLS
    out = " ".join(capsys.readouterr().out.split())
    assert "the trace is not written: " in out
    assert "replay not recorded" in out


# --- Ctrl-C ---------------------------------------------------------------------------------

CHECKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from servecheck.cli import main; sys.exit(main(sys.argv[1:]))"
)


def interrupted(fifo: Path, command: str, *words: str) -> tuple[int, str, str]:
    """The exit code of a checker that is interrupted when its engine says so, and what it said."""
    os.mkfifo(fifo)
    words = ("fuzz", "--seconds", "600", "--timeout", "600", "--command", command, *words)
    with subprocess.Popen(
        [sys.executable, "-c", CHECKER, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as checker:
        assert fifo.read_text(encoding="utf-8") == "asked"
        checker.send_signal(signal.SIGINT)
        out, err = checker.communicate(timeout=60)
    return checker.returncode, out, err


def test_ctrl_c_during_the_start(elsewhere: Path) -> None:
    fifo = elsewhere / "fifo"
    tells = f"import time; open({str(fifo)!r}, 'w').write('asked'); time.sleep(600)"
    command = shlex.join([sys.executable, "-c", tells])
    assert interrupted(fifo, command) == (Exit.INTERRUPTED, "", "interrupted\n")


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_ctrl_c_in_the_middle_tells_what_is_known(words: tuple[str, ...], elsewhere: Path) -> None:
    """Given an engine that waits at its first hit; when the checker is interrupted there, then it
    tells what it knows, and ends as anything that is interrupted."""
    fifo = elsewhere / "fifo"
    waits = f"            import time; open({str(fifo)!r}, 'w').write('asked'); time.sleep(600)"
    code, out, err = interrupted(fifo, changed(elsewhere, TAKES, waits), *words)
    assert (code, err) == (Exit.INTERRUPTED, "")
    if words:
        told = json.loads(out)
        assert (told["verdict"], told["interrupted"]) == ("undetermined", True)
        assert told["steps"] > 0
    else:
        assert out.startswith("undetermined: interrupted after ")
        assert "and nothing fell\n" in out
