"""Stories about the command line: what it prints, how it ends, and that nothing on the way in or
out (a hostile id, a closed pipe, a full disk, Ctrl-C) ends in a traceback.

Most run `main` in this process. Where streams, signals or imports matter, it is a process of its
own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from servecheck import miniature
from servecheck.cli import COMMANDS, main, terminal
from servecheck.cli.differences import Part, parts, plain
from servecheck.cli.terminal import Exit, escaped, settled
from servespec.actions import Action, Schedule
from servespec.machine import Machine, Transition
from servespec.plan import State
from tests.recordings import OWN, names_in, prefix

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def called(*args: str | Path) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return called


def error(run: Run, *args: str | Path) -> str:
    """The one line of a call that is refused."""
    code, out, err = run(*args)
    assert code == Exit.BAD_INPUT
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def environment(**changes: str) -> dict[str, str]:
    """That of a plain pipe, and what is said."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**kept, **changes}


def process(*args: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "servecheck", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**changes),
        check=False,
    )


# --- help, version, usage ---------------------------------------------------------------------


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(run: Run, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: servecheck [OPTIONS] COMMAND [ARGS]...\n")
    for name in COMMANDS:
        assert f"\n  {name} " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert "--json" in out


def test_help_imports_nothing_that_takes_time() -> None:
    program = (
        "import sys; from servecheck.cli import main; code = main(['--help']); "
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"attr", "attrs", "cattrs", "cbor2", "hypothesis", "networkx", "orjson", "rich"}
    assert set(done.stderr.split()) & {*heavy, "servespec"} == set()


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("servecheck ")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nope"], "No such command 'nope'; see servecheck --help"),
        (["replay"], "nothing to replay: give a TRACE, or --recording PREFIX"),
        (["miniature", "--nope"], "No such option: --nope; see servecheck miniature --help"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, args: list[str], message: str) -> None:
    assert error(run, *args) == message


# --- miniature --------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), ("--engine", "spec"), ("--engine", "fast")])
def test_miniature_prints_the_lines_of_the_article(run: Run, args: tuple[str, ...]) -> None:
    code, out, err = run("miniature", *args)
    assert (code, err) == (0, "")
    assert out.splitlines() == list(miniature.lines())


def test_miniature_as_json(run: Run) -> None:
    code, out, err = run("miniature", "--json", "--engine", "fast")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["engine"], told["verdict"]) == ("fast", "holds")
    assert [result["line"] for result in told["results"]] == list(miniature.lines())


@pytest.mark.parametrize("as_json", [False, True])
def test_what_does_not_hold_is_exit_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def falls(make: object) -> None:
        raise miniature.MiniatureError("memory", "pages hold\nless")

    monkeypatch.setattr(miniature, "miniature", falls)
    code, out, err = run("miniature", *(["--json"] if as_json else []))
    assert (code, err) == (Exit.FALLS, "")
    if as_json:
        what = "memory: pages hold\nless"
        told = {"command": "miniature", "engine": "spec", "verdict": "falls", "what": what}
        assert json.loads(out) == told
    else:
        assert out == "does not hold: memory: pages hold\\nless\n"


# --- replay: what agrees ----------------------------------------------------------------------


def test_a_recording_that_agrees_is_one_line(run: Run) -> None:
    code, out, err = run("replay", "--recording", prefix("toy_reset"))
    assert (code, err) == (0, "")
    assert out == (
        "toy_reset: 49 of 49 steps agree; compared 1849 fields, 40 messages, 98 states\n"
    )


def test_a_folder_is_all_its_recordings(run: Run) -> None:
    code, out, err = run("replay", "--recording", OWN)
    names = names_in(OWN)
    assert (code, err) == (0, "")
    *lines, last = [line for line in out.splitlines() if not line.startswith("  ")]
    assert [line.split(":")[0] for line in lines] == names
    assert last == f"{len(names)} of {len(names)} recordings agree"


def test_several_recordings_with_one_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    copied(tmp_path, "toy_maxlen")
    code, out, _ = run(
        "replay", "--recording", OWN / "toy_maxlen", "--recording", tmp_path / "toy_maxlen"
    )
    assert code == 0
    assert f"\n{tmp_path / 'toy_maxlen'}: 45 of 45 steps agree; " in out


def test_other_files_can_stand_in(run: Run) -> None:
    """The same steps from another place agree; those of another workload do not."""
    given = ["replay", "--recording", OWN / "dup_bytes_hashes"]
    assert run(*given, "--steps", OWN / "dup.steps.jsonl")[0] == 0
    code, out, _ = run(*given, "--workload", OWN / "reset.workload.jsonl")
    assert code == Exit.FALLS
    assert "dup_bytes_hashes: 0 of 68 steps agree; step 0 does not; " in out


def test_a_request_that_cannot_fit_is_a_warning(run: Run) -> None:
    code, out, _ = run("replay", "--recording", OWN / "toy_edges")
    assert code == 0
    assert out.splitlines()[1:] == [
        f"  warning: request '{name}' does not fit even alone: "
        "it can come to use 9 blocks, and 8 can be handed out"
        for name in ("e3", "e5")
    ]
    code, out, _ = run("replay", "--recording", OWN / "toy_edges", "--json")
    (told,) = json.loads(out)["recordings"]
    assert [warning["request"] for warning in told["warnings"]] == ["e3", "e5"]


# --- replay: what differs ---------------------------------------------------------------------


def copied(to: Path, name: str, edit: Callable[[dict[str, object]], object] = dict) -> Path:
    """A copy of a recording of which the settings of all runs are edited."""
    for path in OWN.glob(f"{name}.*"):
        shutil.copy(path, to)
    config = json.loads((OWN / "config.json").read_text())
    for settings in config["toy_runs"].values():
        edit(settings)
    (to / "config.json").write_text(json.dumps(config))
    return to / name


def edited(path: Path, number: int, edit: Callable[[dict[str, list[int]]], object]) -> None:
    """Line `number`, from 0, of a file of JSON lines is edited."""
    lines = path.read_text().splitlines()
    line = json.loads(lines[number])
    edit(line)
    path.write_text("\n".join([*lines[:number], json.dumps(line), *lines[number + 1 :]]) + "\n")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A recording in which two entries of the free queue of step 22 have changed places."""

    def swap(state: dict[str, list[int]]) -> None:
        free = state["free"]
        free[3], free[4] = free[4], free[3]

    given = copied(tmp_path, "toy_maxseqs")
    edited(given.with_name("toy_maxseqs.state.jsonl"), 44, swap)
    return given


def test_the_first_step_that_differs_is_told_field_by_field(run: Run, wrong: Path) -> None:
    code, out, err = run("replay", "--recording", wrong)
    assert (code, err) == (Exit.FALLS, "")
    assert out == (
        "toy_maxseqs: 22 of 62 steps agree; step 22 does not; "
        "compared 851 fields, 18 messages, 46 states\n"
        "  state scheduled, free[3]\n"
        "    recorded   12, 14, 11, 10, 9, 8, 17, 16, 21, 18, 19, 24, 23, 22\n"
        "    specified  14, 12, 11, 10, 9, 8, 17, 16, 21, 18, 19, 24, 23, 22\n"
    )


def test_json_has_the_values_whole(run: Run, wrong: Path) -> None:
    code, out, err = run("replay", "--recording", wrong, "--json")
    assert (code, err) == (Exit.FALLS, "")
    told = json.loads(out)
    assert told["verdict"] == "falls"
    (recording,) = told["recordings"]
    assert (recording["steps"], recording["agreed"]) == (62, 22)
    (difference,) = recording["differences"]
    assert (difference["step"], difference["field"]) == (22, "free")
    assert difference["recorded"][3:5] == difference["specified"][4:2:-1] == [12, 14]
    assert len(difference["recorded"]) == 17


def test_one_that_differs_does_not_hide_the_others(run: Run, wrong: Path) -> None:
    code, out, _ = run("replay", "--recording", wrong, "--recording", OWN / "toy_reset")
    assert code == Exit.FALLS
    assert out.splitlines()[-2].startswith("toy_reset: 49 of 49 steps agree; ")
    assert out.splitlines()[-1] == "1 of 2 recordings agree"


def test_many_differences_are_cut(run: Run, tmp_path: Path) -> None:
    def by_order(settings: dict[str, object]) -> None:
        settings["policy"] = "fcfs"

    code, out, _ = run("replay", "--recording", copied(tmp_path, "toy_giveback", by_order))
    assert code == Exit.FALLS
    assert out.count("    recorded   ") == 12
    assert out.endswith("\n  … and 8 more places; --json shows all\n")


@pytest.mark.parametrize("columns", ["20", "300"])
def test_any_width_will_do(wrong: Path, columns: str) -> None:
    done = process("replay", "--recording", wrong, COLUMNS=columns)
    assert done.returncode == Exit.FALLS
    assert "\n  state scheduled, free[3]\n    recorded   12, 14, 11, " in done.stdout
    assert max(map(len, done.stdout.splitlines()[2:])) <= 45 or columns == "300"
    assert process("replay", "--help", COLUMNS=columns).returncode == 0


# --- where two values part --------------------------------------------------------------------


@frozen
class Held:
    status: str
    table: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("recorded", "specified", "expected"),
    [
        (1, 2, Part("f", "1", "2")),
        (None, "a\n", Part("f", "nothing", "'a\\n'")),
        ((), (7,), Part("f[0] (0 recorded, 1 specified)", "nothing", "7")),
        ((1, 2, 3), (1, 3, 2), Part("f[1]", "2, 3", "3, 2")),
        ((("a", 1),), (("a", 2),), Part("f[0]", "('a', 1)", "('a', 2)")),
        (
            tuple(range(1000)),
            tuple(range(999)),
            Part("f[999] (1000 recorded, 999 specified)", "999", "nothing"),
        ),
        (
            (0, *range(1000)),
            (1, *range(1000)),
            Part("f[0]", "0, 0, 1, 2, … 997 more", "1, 0, 1, 2, … 997 more"),
        ),
        (("x" * 40, 1), ("y", 1), Part("f[0]", "'xxxxxxxxxx…, … 1 more", "'y', 1")),
        ({"r 1": Held("A")}, {"r 1": Held("B")}, Part("f.'r 1'.status", "'A'", "'B'")),
        ({}, {"r1": 1}, Part("f.r1", "nothing", "1")),
        ((Held("A", (1, 2)),), (Held("A", (2, 1)),), Part("f[0].table[0]", "1, 2", "2, 1")),
        (
            frozenset({("aa", (1,)), ("bb", (2,))}),
            frozenset({("aa", (1,))}),
            Part("f, what one side alone holds", "('bb', (2,))", "nothing"),
        ),
    ],
)
def test_where_two_values_part(recorded: object, specified: object, expected: Part) -> None:
    assert list(parts("f", recorded, specified, 22)) == [expected]


def test_each_part_of_a_mapping_and_a_record_is_told() -> None:
    recorded = {"a": Held("A", (1,)), "b": Held("A"), "c": Held("C")}
    specified = {"a": Held("B", (2,)), "c": Held("C"), "d": Held("D")}
    found = [part.path for part in parts("reqs", recorded, specified, 80)]
    assert found == ["reqs.a.status", "reqs.a.table[0]", "reqs.b", "reqs.d"]


def test_plain_is_for_json() -> None:
    value = {"a": (Held("A", (1,)), None), "b": frozenset({(2, True), (1, False)})}
    assert plain(value) == {
        "a": [{"status": "A", "table": [1]}, None],
        "b": [[1, False], [2, True]],
    }


# --- replay: what is refused ------------------------------------------------------------------


def asynchronous(settings: dict[str, object]) -> None:
    settings["async_scheduling"] = True


def test_asynchronous_runs_of_a_folder_are_skipped(run: Run, tmp_path: Path) -> None:
    copied(tmp_path, "toy_maxlen", asynchronous)
    for kind in ("workload", "steps", "events"):
        shutil.copy(OWN / f"reset.{kind}.jsonl", tmp_path)
    code, out, err = run("replay", "--recording", tmp_path)
    assert (code, err) == (0, "")
    why = "asynchronous scheduling keeps two steps in flight, this machine one"
    assert out.splitlines()[1:] == [
        f"toy_maxlen: skipped, {why}",
        "1 of 1 recordings agree; 1 skipped",
    ]
    code, out, _ = run("replay", "--recording", tmp_path, "--json")
    assert json.loads(out)["recordings"][1]["skipped"] == why


def test_an_asynchronous_run_that_is_named_is_refused(run: Run, tmp_path: Path) -> None:
    given = copied(tmp_path, "toy_maxlen", asynchronous)
    assert error(run, "replay", "--recording", given).endswith("; replay a synchronous run")
    code, _, err = run("replay", "--recording", tmp_path)
    assert code == Exit.BAD_INPUT
    assert err.startswith("error: there is nothing to replay: asynchronous scheduling ")


def test_what_cannot_be_replayed_is_one_line(run: Run, tmp_path: Path) -> None:
    replay = ("replay", "--recording")
    assert error(run, *replay, tmp_path / "x").endswith("no config.json is beside it")
    assert error(run, *replay, tmp_path).endswith(": it has no file NAME.events.jsonl")
    assert 'no run is named "x"; ' in error(run, *replay, OWN / "x")
    empty = tmp_path / "empty"
    empty.touch()
    refused = error(run, *replay, OWN / "reset", "--steps", empty)
    assert refused == "reset: it has no steps, so nothing can be compared; record it again"
    refused = error(run, *replay, OWN, "--steps", empty)
    assert refused == "--workload and --steps go with one recording: give one PREFIX"
    refused = error(run, *replay, OWN / "reset", "--steps", tmp_path)
    assert refused.startswith(f"{tmp_path}: cannot be read (")


def test_settings_that_contradict_each_other_are_one_line(run: Run, tmp_path: Path) -> None:
    def null_block_alone(settings: dict[str, object]) -> None:
        settings["num_gpu_blocks"] = 1

    given = copied(tmp_path, "toy_maxlen", null_block_alone)
    assert error(run, "replay", "--recording", given).startswith("toy_maxlen: num_blocks: 1 is ")


def test_a_request_that_cannot_exist_is_one_line(run: Run, tmp_path: Path) -> None:
    given = copied(tmp_path, "toy_maxlen")
    edited(given.with_name("toy_maxlen.workload.jsonl"), 0, lambda line: line["prompt"].clear())
    refused = error(run, "replay", "--recording", given)
    assert refused.startswith("toy_maxlen: request 'm0': the prompt is empty; ")


def test_json_tells_what_was_known_before_the_bad_one(run: Run, tmp_path: Path) -> None:
    given = ["replay", "--recording", OWN / "toy_reset", "--recording", OWN / "x", "--json"]
    code, out, err = run(*given)
    assert code == Exit.BAD_INPUT
    told = json.loads(out)
    assert told["verdict"] == "undetermined"
    assert err == f"error: {told['error']}\n"
    assert [recording["verdict"] for recording in told["recordings"]] == ["holds"]


# --- hostile names ----------------------------------------------------------------------------

HOSTILE = "\x1b[31m[red]\n\u202ex\x07"


def test_a_hostile_id_is_shown_and_not_obeyed(run: Run, tmp_path: Path) -> None:
    given = copied(tmp_path, "toy_edges")
    for path in tmp_path.glob("toy_edges.*"):
        path.write_text(path.read_text().replace('"e5"', json.dumps(HOSTILE)))
    code, out, _ = run("replay", "--recording", given)
    assert code == 0
    assert out.splitlines()[2].startswith(f"  warning: request {HOSTILE!r} does not fit even alone")

    def without(line: dict[str, list[int]]) -> None:
        line["waiting"] = []

    steps = given.with_name("toy_edges.steps.jsonl")
    waiting = [json.loads(line)["waiting"] for line in steps.read_text().splitlines()]
    edited(steps, next(i for i, ids in enumerate(waiting) if HOSTILE in ids), without)
    code, out, _ = run("replay", "--recording", given)
    assert code == Exit.FALLS
    assert "\\x1b[31m[red]\\n\\u202ex\\x07" in out.splitlines()[-1]
    assert all(line.isprintable() for line in out.split("\n"))


def test_a_hostile_path_is_shown_and_not_obeyed(run: Run) -> None:
    message = error(run, "replay", "--recording", f"no{HOSTILE}\udcff/x")
    assert message.startswith("no\\x1b[31m[red]\\n\\u202ex\\x07\\udcff/x: neither a folder nor ")
    assert error(run, HOSTILE).isprintable()


def test_escaped() -> None:
    assert escaped("é 日 [b] \\") == "é 日 [b] \\"
    assert escaped("\t\r\x7f\x9b\u2028\ufeff\ud800") == "\\t\\r\\x7f\\x9b\\u2028\\ufeff\\ud800"


# --- the streams ------------------------------------------------------------------------------

CALLS = [
    ["--help"],
    ["--version"],
    ["miniature"],
    ["replay", "--recording", str(OWN / "reset")],
    ["replay", "--recording", str(OWN / "reset"), "--json"],
]


@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_a_closed_pipe_is_no_error(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "servecheck", *args],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (Exit.CLOSED_PIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a full disk")
@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_a_full_disk_is_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "servecheck", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == Exit.BAD_INPUT
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_closed_streams_are_no_traceback() -> None:
    program = f"{sys.executable} -m servecheck replay --recording {OWN / 'reset'}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{program} >&-"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == Exit.BAD_INPUT
    assert done.stderr == "error: standard output cannot be written: it is closed\n"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{program}x 2>&-"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (Exit.BAD_INPUT, "")


def test_what_an_encoding_lacks_is_written_out(tmp_path: Path) -> None:
    done = process("replay", "--recording", tmp_path / "日", PYTHONIOENCODING="ascii")
    assert done.returncode == Exit.BAD_INPUT
    assert "/\\u65e5: neither a folder nor a recording" in done.stderr


def test_a_pipe_gets_no_colour(wrong: Path) -> None:
    done = process("replay", "--recording", wrong, FORCE_COLOR="1", TERM="xterm-256color")
    assert done.returncode == Exit.FALLS
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("changes", "coloured"),
    [({}, True), ({"COLUMNS": "20"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=str,
)
def test_a_terminal_gets_colour_unless_it_minds(
    wrong: Path, changes: dict[str, str], coloured: bool
) -> None:
    import pty

    here, there = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "servecheck", "replay", "--recording", str(wrong)],
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment(**{"TERM": "xterm-256color", **changes}),
    ) as child:
        os.close(there)
        said = b""
        while True:
            try:
                more = os.read(here, 4096)
            except OSError:  # Linux: the other end is closed
                more = b""
            if not more:
                break
            said += more
        assert child.wait(60) == Exit.FALLS
    os.close(here)
    assert (b"\x1b[1;31mstep 22 does not\x1b[0m" in said) == coloured
    assert (b"\x1b" in said) == coloured
    assert b"free[3]" in said


def opened(pipe: Path, child: subprocess.Popen[str]) -> int:
    """The writing end of a named pipe, as soon as the child has opened it to read."""
    while child.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
    raise AssertionError(child.communicate())


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes and signals")
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_with_what_is_known_so_far(tmp_path: Path, as_json: bool) -> None:
    """The second recording is a named pipe into which nobody writes."""
    waiting = copied(tmp_path, "toy_maxlen")
    steps = waiting.with_name("toy_maxlen.steps.jsonl")
    steps.unlink()
    os.mkfifo(steps)
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from servecheck.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    args = ["replay", "--recording", str(OWN / "reset"), "--recording", str(waiting)]
    with subprocess.Popen(
        [sys.executable, "-c", program, *args, *(["--json"] if as_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        writer = opened(steps, child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        os.close(writer)
    assert child.returncode == Exit.INTERRUPTED
    assert err == "interrupted\n"
    if as_json:
        told = json.loads(out)
        assert (told["verdict"], told["error"]) == ("undetermined", "interrupted")
        assert [recording["agreed"] for recording in told["recordings"]] == [38]
    else:
        assert out.startswith("reset: 38 of 38 steps agree; ")
        assert out.endswith("\n1 of 1 recordings agree; 1 not replayed\n")


def test_ctrl_c_within_a_recording_says_how_far_it_agrees(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C as the eighth pass begins, in place of a key that nobody can press in time."""
    real, passes = Machine.apply, 0

    def apply(machine: Machine, state: State, action: Action) -> Transition:
        nonlocal passes
        passes += isinstance(action, Schedule)
        if passes == 8:
            raise KeyboardInterrupt
        return real(machine, state, action)

    monkeypatch.setattr(Machine, "apply", apply)
    code, out, err = run("replay", "--recording", OWN / "reset")
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert err == "interrupted in reset, of which 6 passes agree so far\n"


# --- faults -----------------------------------------------------------------------------------


def test_a_fault_of_servecheck_itself_shows_where_and_is_not_exit_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fault() -> int:
        raise RuntimeError("a fault")

    assert settled(fault) == Exit.INTERNAL
    assert capsys.readouterr().err.endswith("RuntimeError: a fault\n")


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (PermissionError(13, "Permission denied", "a\nfile"), "a\\nfile: Permission denied"),
        (MemoryError(), "the memory does not suffice; try something smaller"),
        (terminal.BadInput("so"), "so"),
    ],
)
def test_what_somebody_else_can_mend_is_one_line(
    capsys: pytest.CaptureFixture[str], raised: Exception, line: str
) -> None:
    def failing() -> int:
        raise raised

    assert settled(failing) == Exit.BAD_INPUT
    assert capsys.readouterr().err == f"error: {line}\n"
