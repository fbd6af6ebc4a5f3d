"""Stories about Ctrl-C that comes where Python drops it."""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

import pytest

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.explore.scopes import ServingScope, named
from servecheck.explore.search import Limits, search
from servecheck.processes import deaf, insisting, press, unheard


class Thing:
    """What somebody may refer to weakly."""


def insisted(work: Callable[[], object]) -> None:
    """Do it, and wait a minute, unless Ctrl-C is heard."""
    with insisting():
        work()
        deadline = monotonic() + 60
        while monotonic() < deadline:
            sleep(0.01)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Whoever listens leaves all as it was."""
    signals, hook = (signal.SIGINT, signal.SIGALRM), sys.unraisablehook
    before = [signal.getsignal(number) for number in signals]
    yield
    assert [signal.getsignal(number) for number in signals] == before
    assert sys.unraisablehook is hook
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_callback_of_the_collector_drops_is_raised_again() -> None:
    pressed: list[str] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if len(pressed) < 3:  # it may be dropped more than once
            pressed.append(phase)
            press()

    gc.callbacks.append(collected)
    try:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                insisted(gc.collect)
    finally:
        gc.callbacks.remove(collected)
    assert len(pressed) == 3


def test_what_a_weak_reference_drops_is_raised_again() -> None:
    things = [Thing()]
    watched = weakref.ref(things[0], lambda gone: press())
    with pytest.raises(KeyboardInterrupt):
        insisted(things.clear)
    assert watched() is None


def test_what_was_dropped_waits_while_processes_are_started() -> None:
    """Given Ctrl-C that was dropped; when it would be raised again while processes are started,
    then it is heard when that is done, and not in the middle of it."""
    done: list[str] = []

    def works() -> None:
        things = [Thing()]
        watched = weakref.ref(things[0], lambda gone: press())
        things.clear()
        with unheard():
            deadline = monotonic() + 60
            while signal.SIGINT not in signal.sigpending() and monotonic() < deadline:
                sleep(0.01)
            done.append("started")
        done.append(str(watched()))

    with pytest.raises(KeyboardInterrupt):
        insisted(works)
    assert done == ["started"]


def test_processes_of_a_search_are_started_where_ctrl_c_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given a search in two processes; when one begins, then Ctrl-C cannot have come before it is
    deaf to it."""
    file = tmp_path / "waits"

    def begins() -> None:
        waits = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with file.open("a", encoding="utf-8") as told:
            told.write(f"{waits}\n")
        deaf()

    monkeypatch.setattr("servecheck.explore.search.deaf", begins)
    monkeypatch.setattr("servecheck.explore.search.BATCH", 8)
    (scope,) = named("serving-tiny/priority")
    assert isinstance(scope, ServingScope)
    search(scope.system, limits=Limits(states=100), processes=2)
    assert file.read_text(encoding="utf-8") == "True\n" * 2


def test_what_else_is_dropped_is_told_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    class Ends:
        def __del__(self) -> None:
            raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr("sys.unraisablehook", lambda what: told.append(what.exc_type))
        with insisting():
            Ends()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert told == [ValueError]


def calls(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("fuzz/walk.py", ["fuzz", "--seconds", "30"]),
        ("fuzz/walk.py", ["fuzz", "--seconds", "30", "--engine", "fast"]),
        ("fuzz/legs.py", ["fuzz", "--driver", "walks", "--steps", "30000"]),
        ("explore/search.py", ["check", "--scope", "serving-small", "--jobs", "1"]),
        ("zoo/run.py", ["zoo", "--entry", "let-go-twice", "--seconds", "30", "--jobs", "1"]),
    ],
    ids=["fuzz", "beside an engine", "without Hypothesis", "check", "zoo"],
)
def test_a_command_hears_it_though_it_comes_while_garbage_is_collected(
    work: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given a command at work; when Ctrl-C comes in a callback of the garbage collector, then the
    command ends all the same, soon after."""
    monkeypatch.chdir(tmp_path)
    pressed: list[float] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if not pressed and any(file.endswith(work) for file in calls(sys._getframe())):
            pressed.append(monotonic())
            press()

    gc.callbacks.append(collected)
    try:
        assert main(words) == Exit.INTERRUPTED
    finally:
        gc.callbacks.remove(collected)
    assert monotonic() - pressed[0] < 20
