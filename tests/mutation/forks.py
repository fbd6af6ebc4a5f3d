"""Work in a fork of this process: quiet, bounded, in a room of its own."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

MEMORY = 2 << 30
"""Bytes a mutant may take beyond what the server has."""
HELD, FAILED, STUCK = 0, 1, 2
"""Exit codes of forks."""


def forked(work: Callable[[int], int]) -> tuple[int, int]:
    """Start work in a fork, quietly; its process id, and the pipe that it tells through."""
    here, there = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        return pid, here
    try:
        os.close(here)
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        mine = room(os.getpid())
        mine.mkdir(exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(mine)
        os._exit(work(there))
    except BaseException:
        os._exit(FAILED)


def room(pid: int) -> Path:
    """Where the tests of a fork keep their files."""
    return Path(tempfile.gettempdir()) / f"servecheck-mutant-{os.getuid()}-{pid}"


def ended(pid: int, status: int, pipe: int) -> tuple[int, str]:
    """What came of a fork that has ended: its exit code, and what it told."""
    with open(pipe, encoding="utf-8") as stream:
        said = stream.read()
    shutil.rmtree(room(pid), ignore_errors=True)
    return os.waitstatus_to_exitcode(status), said


def limited(seconds: float) -> None:
    """End this process once it has taken that much more CPU."""
    signal.signal(signal.SIGPROF, lambda *_: os._exit(STUCK))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory() -> None:
    statm = Path("/proc/self/statm")
    if statm.exists():
        bound = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
