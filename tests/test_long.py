"""Stories about long campaigns: walks alone, in several processes, with one verdict.

The legs here are short, so that a few hundred steps are many of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from time import monotonic, sleep

import pytest
from attrs import evolve

from servecheck.cli import main
from servecheck.cli.engines import subject_of
from servecheck.cli.summary import lines, told
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.protocol import SeenPlan, Unsupported
from servecheck.fuzz import counted as counting
from servecheck.fuzz import workers
from servecheck.fuzz.campaign import campaign
from servecheck.fuzz.corpus import Best, Corpus
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.legs import Engines, Orders, Walker
from servecheck.fuzz.long import Budget, long_campaign
from servecheck.fuzz.summary import Progress, Summary, Verdict
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import anywhere
from servecheck.lockstep.subject import Subject, parted
from servecheck.marks import Mark
from servecheck.trace.read import read_trace
from servespec import pool as blocks
from servespec.config import Config
from servespec.policy import Policy
from servespec.pool import Blocks, Moved, Pool
from servespec.properties import PROPERTIES
from tests import broken_engines as broken

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Failing programs are written into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


def engine(name: str) -> Engines:
    """An engine of a test module, however many processes make it."""
    return partial(subject_of, name, None, None, ())


FAST = engine("fast")
SHORT = Orders(FAST, moves=20, properties=(), leg=150)


def without_clock(found: Summary) -> dict[str, object]:
    """All that is told of a campaign, but for how long it took."""
    return {name: value for name, value in told(found).items() if name != "seconds"}


# --- one verdict, however many processes ----------------------------------------------------------


def test_the_steps_are_cut_into_legs() -> None:
    assert list(Budget(steps=350).legs(150)) == [(0, 150), (1, 150), (2, 50)]
    without_end = Budget(seconds=1.0).legs(150)
    assert [next(without_end) for _ in range(3)] == [(0, 150), (1, 150), (2, 150)]


def test_a_long_campaign_holds_when_its_steps_are_walked() -> None:
    found = long_campaign(SHORT, Budget(steps=500))
    assert found.verdict is Verdict.HOLDS
    assert 500 <= found.steps < 1000
    assert found.seen is not None
    assert found.seen.followed == found.steps
    assert found.lockstep_only
    assert not found.checked


def test_with_more_processes_it_is_the_same_campaign() -> None:
    """Four legs: in this process one after the other, then in two, as they come."""
    orders = evolve(SHORT, properties=("OWN-1", "LRU-3"))
    here, there = (long_campaign(orders, Budget(steps=500), jobs) for jobs in (1, 2))
    assert without_clock(here) == without_clock(there)
    assert here.checked.keys() == {"OWN-1", "LRU-3"}
    assert here.checked["OWN-1"] == here.steps


def test_what_is_told_of_a_seed_is_the_same_to_the_letter() -> None:
    """Given two processes in which sets have other orders; then the JSON is the same."""
    code = (
        "import json; from tests.test_long import *\n"
        "print(json.dumps(without_clock(long_campaign(SHORT, Budget(steps=300)))))"
    )
    places = os.pathsep.join(map(str, (ROOT, ROOT / "spec", ROOT / "impl")))
    said = {
        subprocess.check_output(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": places, "PYTHONHASHSEED": order},
        )
        for order in "12"
    }
    assert len(said) == 1


def test_another_seed_walks_elsewhere() -> None:
    one, other = (long_campaign(evolve(SHORT, seed=seed), Budget(steps=300)) for seed in (1, 2))
    assert one.moves != other.moves


def test_no_two_legs_have_a_walk_in_common() -> None:
    """The legs of a campaign begin so far apart that none comes to the seeds of the next, and the
    last legs of a seed are far from the first of the next."""
    first, second = (long_campaign(evolve(SHORT, leg=leg), Budget(steps=300)) for leg in (150, 300))
    assert first.moves != second.moves


# --- what falls -----------------------------------------------------------------------------------


def head_first(jobs: int) -> Summary:
    """It lets tables go from the other end."""
    orders = evolve(SHORT, engines=engine("tests.broken_engines:HeadFirst"))
    failures = Path("failures") / str(jobs)
    return long_campaign(
        orders, Budget(steps=3000), jobs, failures=failures, again="servecheck fuzz"
    )


def test_a_divergence_is_judged_as_in_any_campaign() -> None:
    """Given an engine that lets tables go from the other end; when it is walked, then the smallest
    program is told, written, and runs again beside the same engine."""
    found = head_first(jobs=1)
    assert found.verdict is Verdict.DIVERGES
    assert found.fall is not None
    assert found.trace is not None
    assert len(found.fall.actions) <= 5
    assert found.steps < 3000
    assert found.report is not None
    assert found.report.replay == f"servecheck fuzz --program {found.trace}"
    trace = read_trace(found.trace)
    again = parted(Subject.of(broken.HeadFirst), trace.machine, trace.actions)
    assert again is not None
    assert again.actions == found.fall.actions


def test_the_first_leg_that_falls_counts_whoever_is_first() -> None:
    here, there = (without_clock(head_first(jobs)) for jobs in (1, 2))
    for found in (here, there):
        del found["trace"], found["report"]  # they name the folder
    assert here == there


def release_head_first(pool: Pool, policy: Policy, table: Blocks) -> Moved:
    """Lets tables go the wrong way round."""
    return right_release(pool, policy, table[::-1])


right_release = blocks.release


def test_a_property_that_falls_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "release", release_head_first)
    orders = evolve(SHORT, engines=nullcontext, properties=("LRU-3",))
    found = long_campaign(orders, Budget(steps=3000))
    assert found.verdict is Verdict.FALLS
    assert found.fall is not None
    assert found.fall.property_id == "LRU-3"
    assert len(found.fall.actions) == 3


def test_what_is_not_asked_does_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "release", release_head_first)
    orders = evolve(SHORT, engines=nullcontext, properties=("OWN-1",))
    found = long_campaign(orders, Budget(steps=300))
    assert found.verdict is Verdict.HOLDS
    assert "LRU-3" in found.unasked
    assert "OWN-1" not in found.unasked


def test_an_engine_that_does_not_do_the_same_twice_is_nondeterministic() -> None:
    orders = evolve(SHORT, engines=engine("tests.broken_engines:Whimsical"))
    found = long_campaign(orders, Budget(steps=3000))
    assert found.verdict is Verdict.NONDETERMINISTIC
    assert found.report is None
    assert found.notes[1].startswith("the search found: ")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_engine_that_is_gone_ends_it_undetermined(jobs: int) -> None:
    orders = evolve(SHORT, engines=engine("tests.broken_engines:Mortal"))
    found = long_campaign(orders, Budget(steps=3000), jobs)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.notes[0].startswith("the engine is gone: ")
    assert any(line.lstrip().startswith("1  submit ") for line in found.notes)


def test_an_engine_that_takes_no_world_is_refused() -> None:
    orders = evolve(SHORT, engines=engine("tests.broken_engines:Nobody"))
    with pytest.raises(Unsupported):
        long_campaign(orders, Budget(steps=300))


class Choosy(FastLoop):
    """It takes a world or two, and then none for a long time."""

    taken = 0

    def __init__(self, config: Config, policy: Policy) -> None:
        Choosy.taken += 1
        if 2 < Choosy.taken < 50:
            raise Unsupported("sizes: none that I take at the moment")
        super().__init__(config, policy)


def test_a_leg_that_finds_no_world_for_long_is_no_reason_to_lose_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given an engine that takes two worlds and then refuses more in a row than an engine that
    takes none; when legs of one walk each are walked, then it holds when all steps are walked."""
    monkeypatch.setattr(counting, "HOPELESS", 3)
    monkeypatch.setattr(Choosy, "taken", 0)
    draw, subject = anywhere(), Subject.of(Choosy)
    walker = Walker(evolve(SHORT, leg=1), subject, draw)
    legs = [walker.leg(number, 1, lambda number, leg: True) for number in range(4)]
    assert [leg.counted.runs for leg in legs] == [1] * 4
    assert [leg.counted.skipped for leg in legs[:2]] == [0, 0]
    assert legs[2].counted.skipped > counting.HOPELESS
    monkeypatch.setattr(Choosy, "taken", 2)
    with pytest.raises(Unsupported):
        walker.leg(0, 1, lambda number, leg: True)


# --- processes ------------------------------------------------------------------------------------


class Deadly(FastLoop):
    """Takes its process with it, but only where that is not the one that puts things together."""

    def schedule(self) -> SeenPlan:
        if parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().schedule()


def test_a_process_that_dies_is_told() -> None:
    orders = evolve(SHORT, engines=engine("tests.test_long:Deadly"))
    found = long_campaign(orders, Budget(steps=3000), jobs=2)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.unable == "a process that walked has died; what it had under way is not known"
    assert next(iter(lines(found)))[1] == f": {found.unable}"


class Looks(Deadly):
    """Takes its process with it while that looks which legs are wanted."""

    def schedule(self) -> SeenPlan:
        if parent_process() is not None:
            lock = getattr(workers._worker[-1].wanted, "get_lock", nullcontext)
            lock().__enter__()
        return super().schedule()


def test_nobody_waits_for_a_process_that_died_while_it_looked() -> None:
    orders = evolve(SHORT, engines=engine("tests.test_long:Looks"))
    assert long_campaign(orders, Budget(steps=3000), jobs=2).verdict is Verdict.UNDETERMINED


class Tells(FastLoop):
    """Says so when it is asked for its hundredth plan."""

    asked = 0

    def schedule(self) -> SeenPlan:
        Tells.asked += 1
        if Tells.asked == 100:
            with suppress(OSError):  # somebody else has told, and nobody listens any more
                pipe = os.open("asked", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"here ")
                os.close(pipe)
        return super().schedule()


class Hangs(Tells):
    """Says so, and does not answer any more."""

    def schedule(self) -> SeenPlan:
        plan = super().schedule()
        if Tells.asked >= 100:
            sleep(600)
        return plan


CHECKER = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from servecheck.cli import main\n"
    "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
)


def checker(folder: Path, jobs: str, name: str = "Tells") -> subprocess.Popen[str]:
    """A long campaign of such an engine in a process of its own."""
    script = folder / "checker.py"
    script.write_text(CHECKER, encoding="utf-8")
    places = (ROOT, ROOT / "spec", ROOT / "impl")
    words = f"fuzz --driver walks --steps 1_000_000 --json --engine tests.test_long:{name} --jobs"
    return subprocess.Popen(
        [sys.executable, str(script), *words.split(), jobs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
    )


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_tells_what_is_known(jobs: str, elsewhere: Path) -> None:
    """Given legs under way, here or in other processes; when somebody interrupts, then what they
    have walked so far is told."""
    os.mkfifo("asked")
    with checker(elsewhere, jobs) as started:
        Path("asked").read_text(encoding="utf-8")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    assert (started.returncode, err) == (Exit.INTERRUPTED, "")
    found = json.loads(out)
    assert (found["verdict"], found["interrupted"]) == ("undetermined", True)
    assert found["steps"] > 0
    assert found["steps_asked"] == 1_000_000


def alive(process: int) -> bool:
    """It runs; what has ended and was not fetched by anybody does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] != "Z"


def test_ctrl_c_while_starts_are_kept_loses_nothing_that_was_found(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a campaign that has found a divergence; when Ctrl-C comes while the corpus is written,
    then the divergence is told all the same."""

    def pressed(corpus: Corpus, best: Best, seed: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Corpus, "keep", pressed)
    orders = evolve(SHORT, engines=engine("tests.broken_engines:HeadFirst"))
    found = long_campaign(orders, Budget(steps=3000), corpus=elsewhere / "corpus")
    assert found.verdict is Verdict.DIVERGES
    assert found.interrupted


def test_ctrl_c_again_and_again_ends_it_at_once(elsewhere: Path) -> None:
    """Given an engine that hangs in other processes; when somebody presses Ctrl-C three times, then
    nobody waits for it, and what is known is told all the same; the last one may come when Python
    is about to end."""
    os.mkfifo("asked")
    with checker(elsewhere, "2", "Hangs") as started:
        Path("asked").read_text(encoding="utf-8")
        for _ in range(3):
            started.send_signal(signal.SIGINT)
            sleep(0.05)
        out, err = started.communicate(timeout=60)
    assert started.returncode in (Exit.INTERRUPTED, -signal.SIGINT), err
    assert json.loads(out)["interrupted"]


def test_ctrl_c_does_not_wait_for_an_engine_that_hangs(elsewhere: Path) -> None:
    """It is waited for a little, then its process is ended."""
    os.mkfifo("asked")
    with checker(elsewhere, "2", "Hangs") as started:
        Path("asked").read_text(encoding="utf-8")
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    assert (started.returncode, err) == (Exit.INTERRUPTED, "")
    assert json.loads(out)["interrupted"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_goes_on_when_the_first_one_is_killed(elsewhere: Path) -> None:
    """Given legs under way in two processes; when the one that puts them together is killed, then
    the others end too."""
    os.mkfifo("asked")
    with checker(elsewhere, "2") as first:
        Path("asked").read_text(encoding="utf-8")
        tasks = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        others = [int(process) for process in tasks.read_text(encoding="utf-8").split()]
        assert len(others) >= 2
        first.kill()
        first.communicate()
    until = monotonic() + 60
    while any(map(alive, others)) and monotonic() < until:
        sleep(0.05)
    assert not any(map(alive, others))


# --- progress ---


@pytest.mark.parametrize("jobs", [1, 2])
def test_it_tells_how_far_it_is_before_the_first_leg_is_done(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given legs longer than the campaign; then what is told of runs, steps and marks rises while
    the only one is walked, up to what is counted."""
    monkeypatch.setattr(workers, "LOOK", 0.01)
    told: list[Progress] = []
    orders = evolve(SHORT, properties=tuple(PROPERTIES), leg=10_000)
    found = long_campaign(orders, Budget(steps=800), jobs, told.append)
    seen = [(p.runs, p.steps, p.marks) for p in told]
    assert seen == sorted(seen)
    assert [steps for _, steps, _ in seen if 0 < steps < found.steps]
    assert seen[-1] <= (found.runs, found.steps, len(found.marks))
    whole = [p for p in told if p.steps]
    assert all(p.runs and p.marks for p in whole)


def test_what_several_processes_tell_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given many short legs in two processes; then all that is told at the end is what is
    counted."""
    monkeypatch.setattr(workers, "LOOK", 0.01)
    told: list[Progress] = []
    found = long_campaign(SHORT, Budget(steps=1500), 2, told.append)
    last = told[-1]
    assert (last.runs, last.steps, last.marks) == (found.runs, found.steps, len(found.marks))


# --- memory ---------------------------------------------------------------------------------------


def test_worlds_are_told_apart_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_WORLDS", 3)
    counted, all_of_them = Counted(), Counted()
    for number in range(6):
        counted.add(Wanderer(number, ()).go(5))
    assert (counted.runs, len(counted.worlds), counted.more_worlds) == (6, 3, True)
    all_of_them.merge(counted)
    all_of_them.merge(counted)
    assert (all_of_them.runs, len(all_of_them.worlds)) == (12, 3)
    assert Mark.EMPTY_PASS in all_of_them.able


# --- the command ----------------------------------------------------------------------------------


def walks(*words: str) -> int:
    return main(["fuzz", "--driver", "walks", *words])


def test_the_command_says_what_was_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--steps", "300", "--properties", "none", "--engine", "fast")
    assert walks(*words) == Exit.HOLDS
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("holds: nothing diverged in 3")
    assert out[0].endswith(" steps")
    assert any(line.startswith(f"not asked: {next(iter(PROPERTIES))}, ") for line in out)
    assert max(map(len, out)) <= 80


def test_the_command_walks_for_some_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert walks("--seconds", "1", "--json", "--profile", "STATIC") == Exit.HOLDS
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"]["asked"] == 1
    assert found["steps_asked"] is None
    assert found["not_asked"] == []
    assert found["steps"] > 0


def test_walks_do_without_hypothesis() -> None:
    words = ["fuzz", "--driver", "walks", "--steps", "100", "--json"]
    code = (
        "import sys; from servecheck.cli import main; "
        f"code = main({words!r}); sys.exit(code or 'hypothesis' in sys.modules)"
    )
    places = os.pathsep.join(map(str, (ROOT / "spec", ROOT / "impl")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_nobody_asked_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Given a policy under which nobody is preempted; when the specification alone is searched, and
    only asked what holds of preemptions, then that is undetermined. With an engine beside it
    something was checked, and so it was with a property that had something to say."""
    words = ("--steps", "300", "--profile", "RESERVED", "--properties")
    assert walks(*words, "PRE-1", "--spec-only") == Exit.UNDETERMINED
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("undetermined: no property that was asked had anything to say, in 3")
    assert "never checked: PRE-1" in out
    assert walks(*words, "PRE-1,OWN-1", "--spec-only") == Exit.HOLDS
    assert walks(*words, "PRE-1") == Exit.HOLDS


@pytest.mark.parametrize("asked", [(), ("OWN-1", "LRU-3")])
def test_both_drivers_ask_the_properties_that_are_named(asked: tuple[str, ...]) -> None:
    """Given properties by name, or none; when one driver or the other searches, then these alone
    are asked, all others are listed, and the engine is compared all the same."""
    ticks, subject = count(), Subject.of(FastLoop)
    both = campaign(9, clock=lambda: next(ticks), following=subject, properties=asked)
    assert subject.followed == both.steps > 0
    walks = long_campaign(evolve(SHORT, properties=asked), Budget(steps=300))
    for found in (both, walks):
        assert found.verdict is Verdict.HOLDS
        assert set(found.unasked) == set(PROPERTIES) - set(asked)
        assert {name for name, times in found.checked.items() if times} <= set(asked)
    told = both, walks
    assert all(found.checked["OWN-1"] == found.steps for found in told) == bool(asked)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--driver", "walk"), "--driver walk is unknown; take one of both, walks"),
        (
            ("--jobs", "2"),
            "--steps and --jobs are for walks; add --driver walks",
        ),
        (
            ("--driver", "walks", "--steps", "9", "--seconds", "9"),
            "--steps and --seconds are two budgets; give one of them",
        ),
        (
            ("--driver", "walks", "--program", "x.jsonl"),
            "--program does not search; drop it, or --driver, --corpus, --properties",
        ),
        (
            ("--properties", "OWN-1", "--program", "x.jsonl"),
            "--program does not search; drop it, or --driver, --corpus, --properties",
        ),
        (
            ("--driver", "walks", "--properties", "LRU-9"),
            "--properties LRU-9: no such property; take all, none, or of LRU-3, LRU-2, LRU-1",
        ),
        (
            ("--properties", "OWN-4, "),
            "--properties OWN-4, : no such property; take all, none, or of "
            + ", ".join(PROPERTIES),
        ),
        (
            ("--driver", "walks", "--properties", "none", "--spec-only"),
            "--spec-only with --properties none checks nothing; drop one of them",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", *words]) == Exit.BAD_INPUT
    assert capsys.readouterr() == ("", f"error: {why}\n")


def test_the_report_fits_into_eighty_columns() -> None:
    found = long_campaign(evolve(SHORT, properties=("OWN-1",)), Budget(steps=300))
    said = [
        "".join(part if isinstance(part, str) else part[0] for part in line)
        for line in lines(found)
    ]
    assert max(map(len, said)) <= 80
