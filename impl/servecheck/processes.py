"""Which signals the processes of a command hear, and when they end.

Theory of operation. Ctrl-C in a terminal reaches every process of a command, and only the one that
puts things together may answer it: it tells what is known so far, and ends the others. The others
are deaf to it from their first instruction on, since Python itself can be interrupted before any
code of ours is run: they are started while Ctrl-C is blocked, which they inherit, and the one that
starts them hears what came meanwhile when it is done. If that one is gone, however it ended, they
end too.

The one that answers has to hear it in spite of Python. What is raised where nobody can catch it, in
a callback of the garbage collector (Hypothesis has one) or of a weak reference (the specification's
chains have them), Python tells and drops; so Ctrl-C that is dropped is raised again, as a signal,
which waits where Ctrl-C does.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from threading import Thread, current_thread, main_thread
from types import FrameType

AGAIN = 0.1
"""Seconds after which Ctrl-C that was dropped is raised again."""


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


@contextmanager
def insisting() -> Iterator[None]:
    """For the process that answers: Ctrl-C that Python drops is raised again until it is heard."""
    if current_thread() is not main_thread():
        yield
        return
    tell = sys.unraisablehook

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            tell(what)

    alarm = signal.signal(signal.SIGALRM, _raised)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = tell
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)


def press() -> None:
    """Let this process hear Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _raised(number: int, frame: FrameType | None) -> None:
    press()
