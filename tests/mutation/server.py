"""Runs mutants: tests are collected once, and each mutant is a fork of the process that has them.

Theory of operation. pytest collects; then this plugin takes over its loop. First each test runs in
a fork of its own and tells what it costs and which functions it calls. After that each mutant is a
fork: the code of one live function is exchanged, and the tests that call it are run, the cheapest
first, up to the first that fails. Nothing is written to disk, and no mutant sees another. The bound
is CPU time, not time: an endless loop ends by what the same test costs without a change, however
busy the machine is; a mutant that eats memory fails.

A function that was called while modules were read may have left values behind that another code
does not change, and a default of a parameter is no code at all. Where such a mutant survives, it is
run once more in a process of its own, in which the changed module is the one that is imported
(`tests.mutation.cold`).
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING

import pytest
from attrs import define, field, frozen

from tests.mutation.forks import (
    FAILED,
    HELD,
    STUCK,
    ended,
    forked,
    limit_memory,
    limited,
    room,
)
from tests.mutation.rows import KILLED, SURVIVED, TIMEOUT, Row
from tests.mutation.table import ROOT

if TYPE_CHECKING:
    from tests.mutation.mutants import Mutant

Function = tuple[str, str]
"""File, from the root of the repository, and qualified name."""

LIMIT = 3.0
"""CPU seconds that any test may take."""
TIMES = 10.0
"""And so many times what it took without a change."""
LONGEST = 3.0
"""CPU seconds: a test that takes longer is not asked."""
COLD = 40
"""Tests that a mutant is shown in a process of its own, the cheapest."""
KEPT = 20.0
"""Seconds after which costs that were measured are written: there may be megabytes of them."""


@frozen
class Cost:
    """What a test takes, in CPU seconds, and which functions it calls."""

    seconds: float
    calls: frozenset[Function]


def key_of(code: CodeType) -> Function:
    return code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname


def code_in(code: CodeType, name: str, line: int) -> CodeType | None:
    """The code of a function in that of its module."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_qualname == name and inner.co_firstlineno == line:
                return inner
            if (found := code_in(inner, name, line)) is not None:
                return found
    return None


def live(files: frozenset[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of some files that there are, by file, name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename in files:
            key = (*key_of(thing.__code__), thing.__code__.co_firstlineno)
            found.setdefault(key, []).append(thing)
    return found


class Recorder:
    """Notes which functions of some files are called."""

    def __init__(self, files: frozenset[str]) -> None:
        self.files = files
        self.calls: set[Function] = set()
        self._seen: set[CodeType] = set()

    def start(self) -> None:
        self.calls, self._seen = set(), set()
        sys.setprofile(self._note)

    def stop(self) -> frozenset[Function]:
        sys.setprofile(None)
        return frozenset(self.calls)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in self._seen:
            self._seen.add(code)
            if code.co_filename in self.files:
                self.calls.add(key_of(code))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@define
class Server:
    """A plugin of pytest whose loop runs mutants."""

    mutants: Sequence[Mutant]
    recorder: Recorder
    """Started before anything of ours was imported."""
    jobs: int
    cap: float
    """CPU seconds of tests without a change that one mutant is shown at most."""
    known: Path | None
    """Where costs are kept for the next run."""
    tell: Callable[[Row], None]
    early: frozenset[Function] = frozenset()
    """Functions that are called while modules are read."""
    failed: bool = False
    costs: dict[str, Cost] = field(factory=dict)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.early = self.recorder.stop()
        functions = live(self.recorder.files)
        gc.collect()
        gc.freeze()  # what a fork does not touch, it does not copy
        self.costs = self._measured(session.items)
        items = {item.nodeid: item for item in session.items}
        by_function: dict[Function, list[str]] = {}
        running: dict[int, tuple[Mutant, int, float]] = {}

        def wait() -> None:
            pid, status = os.waitpid(-1, 0)
            mutant, pipe, began = running.pop(pid)
            code, said = ended(pid, status, pipe)
            verdict = {HELD: SURVIVED, STUCK: TIMEOUT}.get(code, KILLED)
            last = said.splitlines()[-1] if said else ""
            took = round(time.monotonic() - began, 2)
            self.tell(Row(mutant.name, verdict, "" if verdict == SURVIVED else last, took))

        for mutant in self.mutants:
            try:
                code = mutant.code()
            except SyntaxError:
                continue
            where = key_of(code)[0], mutant.name.function
            if where not in by_function:
                reached = [name for name, cost in self.costs.items() if where in cost.calls]
                by_function[where] = self._order(reached)
            asked = [items[name] for name in by_function[where]]
            there = functions.get((*where, mutant.line), [])
            while len(running) >= self.jobs:
                wait()
            began = time.monotonic()
            pid, pipe = forked(lambda out: self._shown(mutant, code, there, asked, out))  # noqa: B023
            running[pid] = mutant, pipe, began
        while running:
            wait()
        return True

    def _order(self, names: Sequence[str]) -> list[str]:
        """Tests in the order in which a mutant is shown them. Half of the time goes to those that
        are close to it, cheap ones that call few functions; half to those that are broad, and call
        many for what they cost."""
        cost = self.costs
        close = sorted(names, key=lambda n: (-cost[n].seconds * len(cost[n].calls), n))
        broad = sorted(names, key=lambda n: (-cost[n].seconds / len(cost[n].calls), n))
        found: dict[str, None] = {}
        spent = [0.0, 0.0]
        while close and broad:
            which = 0 if spent[0] <= spent[1] else 1
            name = (close, broad)[which].pop()
            if name not in found:
                found[name] = None
                spent[which] += cost[name].seconds
        return list(found)

    def _passes(self, item: pytest.Item) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def _measured(self, items: Sequence[pytest.Item]) -> dict[str, Cost]:
        """Each test that passes, with its cost: as known of the same file, or measured."""
        known: dict[str, list[object]] = {}
        if self.known is not None and self.known.exists():
            known = json.loads(self.known.read_text(encoding="utf-8"))
        hashes = {path: _hash(path) for path in {item.path for item in items}}
        running: deque[tuple[pytest.Item, int, int]] = deque()
        kept = time.monotonic()

        def wait() -> None:
            item, pid, pipe = running.popleft()
            with open(pipe, encoding="utf-8") as stream:
                said = stream.read()
            os.waitpid(pid, 0)
            shutil.rmtree(room(pid), ignore_errors=True)
            known[item.nodeid] = [hashes[item.path], *json.loads(said or "[-1, []]")]

        for item in items:
            entry = known.get(item.nodeid)
            if entry is not None and entry[0] == hashes[item.path]:
                continue
            while len(running) >= self.jobs:
                wait()
            running.append((item, *forked(lambda out: self._measure(item, out))))  # noqa: B023
            if time.monotonic() - kept > KEPT:
                self._keep(known)
                kept = time.monotonic()
        while running:
            wait()
        self._keep(known)
        found: dict[str, Cost] = {}
        for item in items:
            _, seconds, calls = known[item.nodeid]
            if isinstance(seconds, int | float) and seconds >= 0 and isinstance(calls, list):
                found[item.nodeid] = Cost(seconds, frozenset((f, q) for f, q in calls))
        return found

    def _keep(self, costs: dict[str, list[object]]) -> None:
        """Write costs for the next run, which may come before this one is done."""
        if self.known is not None:
            self.known.write_text(json.dumps(costs), encoding="utf-8")

    def _measure(self, item: pytest.Item, out: int) -> int:
        limited(LONGEST)
        began = time.process_time()
        self.recorder.start()
        passed = self._passes(item)
        calls = self.recorder.stop()
        if passed and calls:
            took = round(time.process_time() - began, 4)
            with open(out, "w", encoding="utf-8") as stream:
                json.dump([took, sorted(calls)], stream)
        return HELD

    def _shown(
        self,
        mutant: Mutant,
        module: CodeType,
        functions: list[FunctionType],
        asked: list[pytest.Item],
        out: int,
    ) -> int:
        """In a fork: run a mutant up to the first test that fails."""
        limit_memory()
        code = code_in(module, mutant.name.function, mutant.line)
        swapped = 0
        for function in functions:
            mine = function.__code__
            if code is not None and code != mine and code.co_freevars == mine.co_freevars:
                function.__code__ = code
                swapped += 1
        spent = 0.0
        for item in asked if swapped else ():
            cost = self.costs[item.nodeid].seconds
            if spent + cost > self.cap:
                break
            spent += cost
            os.write(out, f"{item.nodeid}\n".encode())
            limited(LIMIT + TIMES * cost)
            if not self._passes(item):
                return FAILED
        signal.setitimer(signal.ITIMER_PROF, 0)
        early = (key_of(module)[0], mutant.name.function) in self.early
        if not early and (swapped or not functions or not asked):
            return HELD
        os.write(out, b"cold\n")
        return self._cold(mutant, asked)

    def _cold(self, mutant: Mutant, asked: Sequence[pytest.Item]) -> int:
        """Run a mutant in a process that imports the changed module. Where no test calls the
        function, those are asked that call another one of its module: they read what it left."""
        file = key_of(mutant.code())[0]
        near = [name for name, cost in self.costs.items() if any(f == file for f, _ in cost.calls)]
        names = [item.nodeid for item in asked] or self._order(near or list(self.costs))
        order = {
            "module": mutant.name.module,
            "file": mutant.file,
            "source": mutant.source,
            "tests": names[:COLD],
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutation.cold"],
            input=json.dumps(order),
            text=True,
            capture_output=True,
            check=False,
        )
        return done.returncode if done.returncode in (HELD, STUCK) else FAILED
