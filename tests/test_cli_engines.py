"""Stories about `servecheck fuzz` with an engine: what it says, what it writes, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from servecheck import __version__
from servecheck.cli import main
from servecheck.cli.terminal import Exit

ROOT = Path(__file__).resolve().parents[1]
POOL = f"{sys.executable} {ROOT / 'examples' / 'pool_engine.py'}"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Failing programs are written into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


def fuzz(*words: str, seconds: str = "1") -> int:
    return main(["fuzz", "--seconds", seconds, *words])


# --- engines that hold ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ((), f"engine fast {__version__}, level state: "),
        (("--engine", "fast"), f"engine fast {__version__}, level state: "),
        (("--engine", "fast", "--level", "steps"), f"engine fast {__version__}, level steps: "),
        (("--engine", "fast", "--level", "pool"), f"engine fast {__version__}, level pool: "),
        (("--engine", "tests.broken_engines:Picky"), "engine picky 1.2.3, level state: "),
    ],
    ids=" ".join,
)
def test_an_engine_that_holds(
    words: tuple[str, ...], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(*words) == Exit.HOLDS
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("holds: nothing fell in ")
    assert lines[2].startswith(engine)
    assert " actions in lockstep, " in " ".join(lines[2:4])
    assert max(map(len, lines)) <= 80
    assert err == ""


def test_the_specification_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("--spec-only") == Exit.HOLDS
    assert "\nengine " not in capsys.readouterr().out


# --- engines that part ----------------------------------------------------------------------


def test_an_engine_that_diverges(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    """Given a broken engine; when it is fuzzed, then the report is shown, the program is written,
    and the command that the report names shows the same again."""
    engine = ("--engine", "tests.broken_engines:HeadFirst")
    assert fuzz(*engine, seconds="60") == Exit.FALLS
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"diverges: fast {__version__}, after 3 actions"
    (trace,) = Path("traces/failures").glob("LOCKSTEP-fast-*.jsonl")
    assert f"written    {trace}" in lines
    assert (elsewhere / trace).exists()
    assert max(len(line) for line in lines if not line.startswith("replay ")) <= 80
    first = lines.index("verdict    diverges")
    last = next(at for at, line in enumerate(lines) if line.startswith("replay"))
    assert main(["fuzz", *engine, "--program", str(trace)]) == Exit.FALLS
    again = capsys.readouterr().out.splitlines()
    assert "\n".join(lines[first:last]) in "\n".join(again)
    assert main(["fuzz", "--engine", "fast", "--program", str(trace)]) == Exit.HOLDS


def test_json_has_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("--engine", "tests.broken_engines:HeadFirst", "--json", seconds="60") == Exit.FALLS
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "diverges"
    assert told["engine"]["level"] == "state"
    assert told["report"][0] == "verdict    diverges"
    assert Path(told["trace"]).match("traces/failures/LOCKSTEP-fast-????????.jsonl")
    assert Path(told["trace"]).exists()
    assert told["fall"]["property"] == "LOCKSTEP"


@pytest.mark.parametrize(
    ("engine", "first"),
    [
        ("Whimsical", "nondeterministic: the engine does not do the same twice"),
        ("Mortal", "undetermined: the engine is gone, and had not diverged"),
    ],
)
def test_what_proves_nothing(engine: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("--engine", f"tests.broken_engines:{engine}", seconds="60") == Exit.UNDETERMINED
    assert capsys.readouterr().out.splitlines()[0] == first


def test_a_process_that_dies(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    text = (ROOT / "examples" / "pool_engine.py").read_text(encoding="utf-8")
    mortal = elsewhere / "mortal.py"
    where = "            self.refs[block] += 1"
    assert where in text
    mortal.write_text(text.replace(where, "            raise SystemExit(3)"), encoding="utf-8")
    assert fuzz("--command", f"{sys.executable} {mortal}", seconds="60") == Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert out.startswith("undetermined: the engine is gone, and had not diverged")
    assert "exited with code 3" in " ".join(out.split())


def test_a_process_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz("--command", POOL) == Exit.HOLDS
    assert "engine example pool in Python " in capsys.readouterr().out


# --- what cannot be checked -----------------------------------------------------------------

MINE = "tests.broken_engines"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--engine", "slow"), "--engine slow: no such engine; write module:factory, or one of"),
        (("--engine", "no.such:thing"), "no.such does not import: ModuleNotFoundError: "),
        (("--engine", f"{MINE}:Nothing"), "tests.broken_engines has no Nothing"),
        (("--engine", f"{MINE}:NO_FACTORY"), "NO_FACTORY is no factory but a int"),
        (("--engine", f"{MINE}:no_engine"), "a int, is no engine: it has no capabilities"),
        (("--engine", f"{MINE}:Liar"), "liar says that it has level STATE, and lacks methods"),
        (("--engine", f"{MINE}:Stillborn"), "cannot be made: RuntimeError: no memory was given"),
        (("--engine", f"{MINE}:Nobody"), "policy: there is none that I take"),
        (("--engine", f"{MINE}:Picky", "--profile", "STATIC"), "policy: this is VLLM_0_33"),
        (
            ("--engine", f"{MINE}:Picky", "--level", "pool"),
            "picky cannot be compared at level POOL, and lacks methods of it",
        ),
        (("--engine", "fast", "--level", "deep"), "--level deep is unknown; take one of pool"),
        (("--level", "pool"), "--level is about an engine"),
        (("--engine", "fast", "--command", "x"), "name two engines; give one of them"),
        (("--engine", "fast", "--spec-only"), "--spec-only leaves every engine out"),
        (("--command", "/no/such/thing"), "/no/such/thing: cannot be started: "),
        (("--command", ""), "is no command: it is empty"),
        (("--program", "none.jsonl"), "none.jsonl: cannot be read"),
        (("--deviations", "none.toml"), "none.toml: cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_checked_is_told_in_one_line(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(*words) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert what in err


def test_a_stale_deviation_fails(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "known.toml").write_text(
        '[[deviation]]\nid = "old"\nengine = "fast"\nversions = ["0", "9"]\nrule = "8"\n'
        'field = "free queue"\naction = "Complete"\ntrace = "traces/old.jsonl"\n'
        'link = "https://example.org/1"\nexpires = 2100-01-01\n',
        encoding="utf-8",
    )
    assert fuzz("--engine", "fast", "--deviations", "known.toml") == Exit.FALLS
    out = capsys.readouterr().out
    assert out.startswith("stale: the register of known deviations is out of date")
    assert "deviation 'old' is stale: it matched nothing; take it out" in out
