"""Processes that work for another one: which signals they hear, and when they end.

Theory of operation. Ctrl-C in a terminal reaches every process of a command, and only the one that
puts things together may answer it: it tells what is known so far, and ends the others. The others
are deaf to it from their first instruction on, since Python itself can be interrupted before any
code of ours is run: they are started while Ctrl-C is blocked, which they inherit, and the one that
starts them hears what came meanwhile when it is done. If that one is gone, however it ended, they
end too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from threading import Thread


def deaf() -> None:
    """For the first thing that a process does: Ctrl-C is for its parent, and it ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A process that was forked has what its parent does when it is asked to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def unheard() -> Iterator[None]:
    """While processes are started: Ctrl-C waits."""
    # The tracker lets Ctrl-C through when it has been started, so it is there before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
