"""Stories about whole runs of the zoo: several seeds, several processes, the file that rows are
kept in, the command; and what may happen to them: Ctrl-C, a full disk, half a row, a closed pipe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from itertools import permutations
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest
from attrs import evolve

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.processes import unheard
from servecheck.trace.model import TraceError
from servecheck.trace.read import read_trace
from servecheck.trace.write import record
from servecheck.zoo import ENTRIES
from servecheck.zoo.document import document
from servecheck.zoo.matrix import Matrix, chosen, matrix
from servecheck.zoo.rows import (
    INDISTINGUISHABLE,
    KILLED,
    Kill,
    ResultsError,
    Row,
    append,
    latest,
    read_rows,
)
from servecheck.zoo.run import Plan, by_properties
from servecheck.zoo.seeds import Spread, Totals, by_entry, spread, totals
from servecheck.zoo.shortest import keep
from servespec.actions import Abort
from tests.test_trace import small_disk
from tests.test_zoo import ROOT, TRACES, kept, timeless

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "spec", ROOT / "impl"))),
}
SAMPLE = ("hit-stays-free", "told-without-parent", "abort-not-told", "one-token-too-many")
"""Entries that are found at once: on the engine's state, on its events, on an end."""


# --- runs ----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_rows_and_a_run_is_resumed(tmp_path: Path) -> None:
    """Given a run over some entries that was stopped after one; when it goes on in two processes,
    then the first row is the one that was kept, and all are as in a run of one process."""
    plan, results = Plan(actions=2_000, traces=TRACES), tmp_path / "rows.jsonl"
    whole = matrix(chosen(SAMPLE), plan)
    assert [row.verdict for row in whole.rows] == [KILLED] * len(SAMPLE)
    first = matrix(chosen(SAMPLE[:1]), plan, results=results).rows[0]
    new: list[str] = []
    again = matrix(chosen(SAMPLE), plan, 2, results, lambda row: new.append(row.entry))
    assert set(new) == set(SAMPLE[1:])
    assert first in again.rows
    assert timeless(again.rows) == timeless(whole.rows)
    assert set(active_children()) == set()


def test_further_seeds_repeat_what_depends_on_them_and_nothing_else(tmp_path: Path) -> None:
    """Given a fault that shows and one that is masked; when they are tried with seeds 5, 6 and 7,
    then the first has a row for each and the other one row; recordings and the property that must
    fall were asked with seed 5 only. Asked for seed 6 alone, its row is made anew, at
    length, and the three are found again."""
    plan, results = Plan(seed=5, actions=1_500, traces=TRACES), tmp_path / "rows.jsonl"
    entries = chosen(("last-hit-not-held", "let-go-twice"))
    rows = matrix(entries[:1], plan, results=results, seeds=3).rows
    assert [(row.seed, row.chance_only) for row in rows] == [(5, None), (6, True), (7, True)]
    assert all(row.spec is not None and row.program is not None for row in rows)
    assert all(row.depth is not None for row in rows)
    asked = [row.golden and row.expected for row in rows]
    assert [bool(found) for found in asked] == [True, False, False]
    new: list[int] = []
    alone = matrix(entries[:1], evolve(plan, seed=6), 1, results, lambda row: new.append(row.seed))
    assert new == [6]
    assert alone.rows[0].golden is not None
    assert matrix(entries[:1], plan, 1, results, seeds=3).rows == (rows[0], *alone.rows, rows[2])
    assert set(by_entry(read_rows(results))) == {"last-hit-not-held"}
    assert Matrix(rows).count(KILLED) == 1


def test_of_all_programs_the_shortest_is_kept_whoever_comes_first(tmp_path: Path) -> None:
    """Given programs of 3, 5 and 4 actions from seeds 1 to 3, and another of 3 from seed 0; in
    whatever order they come, then the folder has that of seed 0 in the end. What is there and does
    not show the fault gives way, be it shorter or no trace at all."""
    entry = ENTRIES["last-hit-not-held"]
    trace = read_trace(TRACES / "zoo" / "last-hit-not-held.jsonl")
    least, in_vain = trace.actions, Abort("nobody")
    assert len(least) == 3
    long, longer = (in_vain, *least), (in_vain, in_vain, *least)
    found = ((least, 1), (longer, 2), (long, 3), (least, 0))
    for order in permutations(found):
        for actions, seed in order:
            keep(tmp_path, entry, (trace.machine, actions), seed)
        kept = read_trace(tmp_path / "last-hit-not-held.jsonl")
        assert (kept.actions, kept.header.seed) == (least, 0)
        record(kept.path, trace.machine, least[:2], None)
    (tmp_path / "last-hit-not-held.jsonl").write_text("{}", encoding="utf-8")
    keep(tmp_path, entry, (trace.machine, longer), 2)
    assert read_trace(tmp_path / "last-hit-not-held.jsonl").actions == longer


def test_who_keeps_a_program_has_the_folder_for_itself(tmp_path: Path) -> None:
    """Given somebody who has the folder; when another one keeps a program, then it waits, and looks
    at what is there only afterwards: the shorter one, which came meanwhile, stays."""
    entry = ENTRIES["last-hit-not-held"]
    trace = read_trace(TRACES / "zoo" / "last-hit-not-held.jsonl")
    longer = (Abort("nobody"), *trace.actions)
    folder = os.open(tmp_path, os.O_RDONLY)
    flock(folder, LOCK_EX)
    other = Thread(target=keep, args=(tmp_path, entry, (trace.machine, longer), 0))
    other.start()
    other.join(0.2)
    assert other.is_alive()
    record(tmp_path / trace.path.name, trace.machine, trace.actions, seed=1)
    os.close(folder)
    other.join(60)
    assert read_trace(tmp_path / trace.path.name).actions == trace.actions


def test_a_program_that_is_not_there_yet_is_found_again(tmp_path: Path) -> None:
    """Given a run whose rows are kept, and its programs not; when it goes on with a folder for
    these, then the entry is tried again and the program is there; and then no more."""
    entries, results = chosen(("last-hit-not-held",)), tmp_path / "rows.jsonl"
    plan = Plan(actions=500)
    first = matrix(entries, plan, results=results)
    new: list[str] = []
    for _ in range(2):
        again = evolve(plan, keep=tmp_path / "programs")
        rows = matrix(entries, again, 1, results, lambda row: new.append(row.entry)).rows
        assert timeless(rows) == timeless(first.rows)
    assert new == ["last-hit-not-held"]
    program = read_trace(tmp_path / "programs" / "last-hit-not-held.jsonl")
    assert len(program.actions) == rows[0].shortest


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir])
def test_where_no_program_can_be_kept_none_is_looked_for(
    made: Callable[[Path], None], tmp_path: Path
) -> None:
    """Given a named pipe, or a folder, in the place of a program; when an entry is to be tried,
    then that is said before anything is; and whoever keeps a program does not wait for the pipe."""
    path = tmp_path / "last-hit-not-held.jsonl"
    made(path)
    with pytest.raises(TraceError, match=r"last-hit-not-held\.jsonl: is no regular file"):
        matrix(chosen([path.stem]), Plan(actions=10**9, keep=tmp_path))
    trace = read_trace(TRACES / "zoo" / path.name)
    with suppress(TraceError):
        keep(tmp_path, ENTRIES[path.stem], (trace.machine, trace.actions), 0)


def test_ctrl_c_while_processes_are_started_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a run that would take hours in two processes; when Ctrl-C comes while they are started,
    where it waits, then the run ends and nobody is left behind."""

    @contextmanager
    def pressed() -> Iterator[None]:
        with unheard():
            yield
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("servecheck.zoo.matrix.unheard", pressed)
    entries = chosen(("hit-stays-free", "let-go-twice"))
    assert matrix(entries, Plan(actions=10**9), 2) == Matrix((), True)
    deadline = monotonic() + 30
    while active_children() and monotonic() < deadline:
        sleep(0.05)
    assert active_children() == []


def test_the_property_that_must_fall_is_asked_alone() -> None:
    """Given a fault of which OWN-1 falls first, and OWN-2 is expected; when no other property is
    asked, then OWN-2 falls as well, and not before."""
    plan, entry = Plan(actions=2_000), ENTRIES["last-hit-not-held"]
    first, must = by_properties(entry, plan), by_properties(entry, plan, "OWN-2")
    assert first is not None
    assert must is not None
    assert (first.by, must.by) == ("OWN-1", "OWN-2")
    assert first.steps <= must.steps
    assert by_properties(entry, Plan(actions=300), "BUD-1") is None


def test_medians_and_worst_cases_count_what_was_not_found_as_worst() -> None:
    assert spread([3, 1, 2]) == Spread(2, 3)
    assert spread([3, 1, None]) == Spread(3, None)
    assert spread([None, 1, None]) == Spread(None, None)
    assert spread([4, 1, 2, 3]) == Spread(3, 4)
    assert spread([]) == Spread(None, None)


def test_totals_leave_out_what_is_masked_and_count_what_was_missed() -> None:
    """Given a pair that comparison killed, one that a property killed, one that only a recording
    showed, and one that is masked; then two of three were killed, one of them by comparison."""
    kill = Kill("free queue", "", 10, 1, 0.5)
    row = evolve(kept()["hit-stays-free"], spec=kill, properties=None, program=3)
    alone = evolve(row, seed=1, spec=None, properties=evolve(kill, steps=20), program=None)
    recorded = evolve(row, seed=2, spec=None, program=9)
    masked = evolve(row, spec=None, verdict=INDISTINGUISHABLE)
    assert totals((row, alone, recorded, masked)) == Totals(
        pairs=3,
        seeds=3,
        killed=2,
        compared=1,
        cpu=Spread(0.5, None),
        steps=Spread(20, None),
        program=Spread(9, 9),
    )


# --- a file of rows ------------------------------------------------------------------------------


def some_row(seed: int = 0) -> Row:
    return evolve(kept()["hit-stays-free"], seed=seed)


def test_a_file_of_rows_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"entry": 1}\n', encoding="utf-8")
    with pytest.raises(ResultsError, match="this is no row"):
        list(read_rows(file))
    with pytest.raises(ResultsError, match="is no file"):
        list(read_rows(tmp_path))


def test_a_row_at_length_stays_where_a_shorter_one_of_the_same_run_follows() -> None:
    """Given two runs that shared a file: then the row with recordings and search counts, in either
    order. Once strategies have changed, the new row counts, however short."""
    whole = some_row()
    short = evolve(whole, chance_only=True, golden=None, depth=None)
    new = evolve(short, strategies="others")
    assert latest([whole, short]) == latest([short, whole]) == {("hit-stays-free", 0): whole}
    assert latest([whole, new]) == {("hit-stays-free", 0): new}


def test_the_page_tells_of_an_entry_that_has_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an entry that the properties alone have found, with every seed; then the page says that
    no program was."""
    file = tmp_path / "rows.jsonl"
    for row in kept().values():
        bare = row.entry == "hit-stays-free"
        append(file, evolve(row, spec=None, program=None, depth=None) if bare else row)
    monkeypatch.setattr("servecheck.zoo.document.RESULTS", file)
    (line,) = (line for line in document().splitlines() if line.startswith("| `hit-stays-free` |"))
    assert line.endswith(" | not found | not found |")


@pytest.mark.parametrize("cut", [1, 30])
def test_a_part_of_a_row_at_the_end_is_passed_over_and_cut_off(cut: int, tmp_path: Path) -> None:
    """Given a file whose last row was cut short when a run was killed; then the others are read,
    and the next one stands where the part stood. If the end of the line alone is missing, the row
    counts."""
    file = tmp_path / "rows.jsonl"
    for seed in (0, 1):
        append(file, some_row(seed))
    file.write_bytes(file.read_bytes()[:-cut])
    whole = [0, 1] if cut == 1 else [0]
    assert [row.seed for row in read_rows(file)] == whole
    append(file, some_row(2))
    assert [row.seed for row in read_rows(file)] == [*whole, 2]
    assert file.read_bytes().count(b"\n") == len(whole) + 1


def test_a_full_disk_is_said_and_leaves_whole_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append(file, some_row())
    size = file.stat().st_size
    with small_disk(size + 100), pytest.raises(ResultsError, match="cannot be written") as caught:
        append(file, some_row(1))
    assert "the rows in it are kept" in str(caught.value)
    assert file.stat().st_size == size
    append(file, some_row(1))
    assert [row.seed for row in read_rows(file)] == [0, 1]


def test_two_runs_share_a_file(tmp_path: Path) -> None:
    """Given a file that two processes write 40 rows each to; then there are 80 whole rows."""
    file = tmp_path / "rows.jsonl"
    append(file, some_row())
    code = (
        "import sys; from pathlib import Path; from servecheck.zoo.rows import append, read_rows\n"
        "file = Path(sys.argv[1]); row = next(read_rows(file))\n"
        "for _ in range(40): append(file, row)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, file], env=ENVIRONMENT) for _ in range(2)]
    assert [child.wait(60) for child in both] == [0, 0]
    assert list(read_rows(file)) == [some_row()] * 81


# --- the command ---------------------------------------------------------------------------------


def test_the_command_tells_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given one entry; when it is tried, then the JSON has totals and its row, and the table a
    line."""
    monkeypatch.chdir(ROOT)
    args = ["zoo", "--entry", "hit-stays-free", "--seconds", "1"]
    assert main([*args, "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)
    assert (told["entries"], told["killed"], told["missed"]) == (1, 1, 0)
    assert told["rows"][0]["properties"]["by"] == "OWN-1"
    assert main(args) == Exit.HOLDS
    said = capsys.readouterr().out
    assert "hit-stays-free" in said
    assert "1 entry: 1 killed, 0 missed, 0 indistinguishable" in said


def test_the_command_lists_entries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "--list", "--json"]) == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)
    assert {row["entry"] for row in told["entries"]} == set(ENTRIES)
    assert main(["zoo", "--list", "--entry", "stale-index"]) == Exit.HOLDS
    assert "The index entry of an evicted block stays." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--entry", "nobody"], "no such entry"),
        (["--traces", "nowhere"], "there is no such folder"),
    ],
)
def test_what_is_not_there_is_bad_input(
    args: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", *args]) == Exit.BAD_INPUT
    assert what in capsys.readouterr().err


def zoo(*words: str | Path, **more: str) -> subprocess.Popen[str]:
    """The command as a process of its own, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "servecheck", "zoo", *map(str, words)],
        cwd=ROOT,
        env={**ENVIRONMENT, **more},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def running(group: int) -> list[str]:
    """The processes of a group, but for those that have ended and wait to be asked how."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its = file.read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state != "Z":
                found.append(file.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_a_run_with_the_rows_so_far(jobs: str, tmp_path: Path) -> None:
    """Given a run over an entry that is found at once and two that are not found; when somebody
    presses Ctrl-C after the first row, then it is told and kept, and nobody is left behind. What
    was under way has no row: that nothing was found in it says nothing."""
    file = tmp_path / "rows.jsonl"
    names = ("hit-stays-free", "let-go-twice", "limit-kept-over-preemption")
    words = [word for name in names for word in ("--entry", name)]
    child = zoo(*words, "--jobs", jobs, "--seconds", "10000", "--json", "--resume", file)
    assert child.stderr is not None
    assert child.stderr.readline().startswith("hit-stays-free, seed 0: killed")
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    told = json.loads(out)
    assert (told["interrupted"], told["entries"]) == (True, 1)
    assert [row.entry for row in read_rows(file)] == ["hit-stays-free"]
    deadline = monotonic() + 30
    while running(child.pid) and monotonic() < deadline:
        sleep(0.05)
    assert running(child.pid) == []


def test_a_broken_pipe_and_a_narrow_terminal_are_no_errors(tmp_path: Path) -> None:
    """Given rows that are kept; when they are told once more to a pipe that nobody reads, then
    there is no traceback; and in 20 columns the table is whole."""
    words = ("--entry", "hit-stays-free", "--seconds", "1", "--resume", tmp_path / "rows.jsonl")
    narrow = zoo(*words, "--jobs", "64", "--seeds", "2", COLUMNS="20")
    out, _ = narrow.communicate(timeout=60)
    assert narrow.returncode == Exit.HOLDS
    assert "2/2" in out
    assert "2 of 2 pairs of entry and seed" in out
    with zoo(*words, "--json") as closed:
        assert closed.stdout is not None
        closed.stdout.close()
        assert closed.stderr is not None
        assert closed.stderr.read() == ""
        assert closed.wait(60) == Exit.CLOSED_PIPE


def test_a_file_that_cannot_be_kept_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk that is full, or a file that is none; then there is one line, and what to do."""
    monkeypatch.chdir(ROOT)
    args = ["zoo", "--entry", "hit-stays-free", "--seconds", "0.1", "--resume"]
    with small_disk(100):
        assert main([*args, str(tmp_path / "rows.jsonl")]) == Exit.BAD_INPUT
    assert "cannot be written (File too large)" in capsys.readouterr().err
    assert main([*args, str(tmp_path)]) == Exit.BAD_INPUT
    assert "is no file; name another" in capsys.readouterr().err
