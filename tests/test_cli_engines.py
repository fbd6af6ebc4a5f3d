"""Stories about `servecheck fuzz` with an engine: what it says, what it writes, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from servecheck import __version__
from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastCache
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, Policy

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


STORIES = ROOT / "traces" / "stories"


@pytest.mark.parametrize(
    ("entry", "field", "rule"),
    [("hit-stays-free", "free queue", "7"), ("told-without-namespace", "event BlockStored", "10")],
)
def test_an_entry_of_the_zoo_is_an_engine(
    entry: str, field: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault is replayed beside the specification; what it tells is compared as well."""
    story = str(STORIES / f"{entry}.jsonl")
    assert main(["replay", story, "--engine", f"zoo:{entry}"]) == Exit.FALLS
    out = " ".join(capsys.readouterr().out.split())
    assert f"expected {field}" in out
    assert f"rule {rule} (by the field that differs first)" in out
    assert main(["replay", story, "--engine", "fast"]) == Exit.HOLDS


# --- what cannot be checked -----------------------------------------------------------------

MINE = "tests.broken_engines"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--engine", "slow"), "--engine slow: no such engine; write module:factory, or one of"),
        (("--engine", "zoo:unicorn"), "--engine zoo:unicorn: no such entry; see servecheck zoo"),
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
        (("--command", ""), "what stands after --command is empty"),
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


KNOWN = (
    '[[deviation]]\nid = "old"\nengine = "fast"\nversions = ["0", "9"]\nrule = "8"\n'
    'field = "free queue"\naction = "Complete"\ntrace = "old.jsonl"\n'
    'link = "https://example.org/1"\nexpires = 2100-01-01\n'
)
SMALL = Config(
    num_blocks=5, block_size=1, max_model_len=3, max_num_batched_tokens=4, max_num_seqs=1
)
PROGRAM: tuple[Action, ...] = (
    Submit("r0", (0, 0), 1),
    Schedule(),
    Complete((Output("r0", (0,)),)),
)


@pytest.fixture
def known(elsewhere: Path) -> tuple[str, ...]:
    """A register of one known deviation, with its trace."""
    (elsewhere / "known.toml").write_text(KNOWN, encoding="utf-8")
    record(elsewhere / "old.jsonl", Machine(SMALL, VLLM_0_33), PROGRAM)
    return ("--deviations", "known.toml")


def test_a_stale_deviation_fails(
    known: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz("--engine", "fast", *known) == Exit.FALLS
    out = capsys.readouterr().out
    assert out.startswith("stale: the register of known deviations is out of date")
    assert "deviation 'old' is stale: it matched nothing; take it out" in out


def test_a_deviation_without_its_trace_is_told_in_one_line(
    known: tuple[str, ...], capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    (elsewhere / "old.jsonl").unlink()
    assert fuzz("--engine", "fast", *known) == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(
        "error: known.toml, deviation 1, field trace: there is no file old.jsonl"
    )


def test_adoptions_are_told(
    known: tuple[str, ...], capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    """Given an engine with a known deviation; when the program that shows it is run, then text and
    JSON say that its state was adopted."""
    words = ("fuzz", "--engine", "tests.broken_engines:HeadFirst", *known, "--program", "old.jsonl")
    assert main([*words]) == Exit.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("known deviations of the engine") + 1] == "    1 old"
    assert lines[lines.index("state adopted after them, followed on") + 1] == "    1 old"
    assert main([*words, "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)["engine"]
    assert told["known_deviations"] == told["adopted"] == {"old": 1}
    assert told["let_go"] == {}


def test_an_engine_that_is_let_go_is_no_pass(
    known: tuple[str, ...], capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    """Given the same as a pool, whose state cannot be adopted: it is undetermined from there."""
    words = ("fuzz", "--engine", "tests.test_cli_engines:HeadFirstPool", *known)
    assert main([*words, "--program", "old.jsonl"]) == Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert out.startswith("undetermined: nothing else fell, and the engine was let go at a known ")
    assert "let go after them, undetermined from there\n    1 old" in out
    assert main([*words, "--program", "old.jsonl", "--json"]) == Exit.UNDETERMINED
    assert json.loads(capsys.readouterr().out)["engine"]["let_go"] == {"old": 1}


class HeadFirstPool(FastCache):
    """A pool that releases from the wrong end."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.pool.tail_first = not self.pool.tail_first
