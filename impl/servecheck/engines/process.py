"""A process that answers lines by lines, or is killed.

Theory of operation. Nothing that the process does holds the checker up. One loop serves all three
pipes, without blocking and under one time limit, so a process may flood them, stop in the middle of
a line, read nothing, or be gone:

    exchange ══▶ stdin      a question, as much of it as the pipe takes
             ◀══ stdout     up to the end of a line
             ◀══ stderr     read all the time; its end is kept

There is one way out (`Process.kill`): the whole process group is killed, the process is reaped, the
pipes are closed. It is taken at the first offence, which is raised with the last that was written
to stderr; if the checker is interrupted; when a process that was closed does not end; and where
somebody forgets to close it, as much of it as needs no object (`_bury`).
"""

from __future__ import annotations

import os
import shlex
import signal
import weakref
from collections.abc import Sequence
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from subprocess import PIPE, Popen, TimeoutExpired
from time import monotonic
from typing import TypeVar

from servecheck.engines.protocol import EngineError, EngineGone
from servecheck.engines.wire import MOST_BYTES

GRACE = 2.0
"""Seconds to end in, after the last question, and again after SIGTERM."""
CHUNK = 1 << 16
KEPT = 1 << 14
"""Bytes of stderr that are kept."""
DRAINED = 16
"""Chunks of stderr that are read after the end: as much as a pipe can hold."""
LOOK = 0.1
"""Seconds of silence after which it is looked whether the process is still there."""


# --- what can go wrong --------------------------------------------------------------------------


class EngineFailed(EngineGone):
    """A process that cannot be driven on. It has been killed and reaped.

    `stderr` holds the last lines that it wrote there.
    """

    def __init__(self, command: str, what: str, stderr: tuple[str, ...] = ()) -> None:
        last = f"; its stderr ends: {' | '.join(short(text) for text in stderr[-3:])}"
        super().__init__(f"{command}: {what}{last if stderr else ''}")
        self.what = what
        self.stderr = stderr


class EngineStartFailed(EngineFailed):
    """There is no such command, or no engine has come of it."""


class EngineTimeout(EngineFailed):
    """No answer came in time."""


class EngineGarbage(EngineFailed):
    """What came is not an answer of the protocol to what was asked."""


class EngineExited(EngineFailed):
    """The process ended, or closed its standard output, before it answered.

    `code` is its exit code, or else `signal` the number of the signal that killed it.
    """

    code: int | None = None
    signal: int | None = None


class EngineRaised(EngineError):
    """The engine answered with an error of its own, and goes on."""


F = TypeVar("F", bound=EngineFailed)


def short(text: str, most: int = 160) -> str:
    """A text on one line, with what does not print written out, cut short."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def quoted(said: bytes | bytearray) -> str:
    return f"'{short(said[:CHUNK].decode('utf-8', 'backslashreplace'), 80)}'"


# --- the process --------------------------------------------------------------------------------


class Process:
    """A process that answers lines by lines, or is killed.

    Raises:
        EngineStartFailed: it cannot be started.
    """

    def __init__(self, words: Sequence[str], grace: float) -> None:
        self.name = short(shlex.join(words), 60)
        self.grace = grace
        self.asked = 0
        """Questions so far; each has its number."""
        self.slowest = 0.0
        """Seconds that the slowest answer so far took."""
        self.over: str | None = None
        """Why nothing can be asked any more."""
        self._heard = bytearray()
        self._stderr = bytearray()
        try:
            # A session of its own: Ctrl-C reaches the checker alone, and whatever the process
            # starts can be killed with it.
            self._popen = Popen(
                words, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise EngineStartFailed(self.name, f"cannot be started: {why or error}") from None
        self._bury = weakref.finalize(self, _bury, self._popen)
        pipes = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in pipes if pipe is not None)
        for pipe in (self._in, self._out, self._err):
            os.set_blocking(pipe, False)
        self._selector = DefaultSelector()
        self._selector.register(self._out, EVENT_READ)
        self._selector.register(self._err, EVENT_READ)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exchange(self, asked: bytes, what: str, limit: float) -> bytes:
        """Send a line; the line that answers it, without its end.

        Raises:
            EngineFailed: none came.
        """
        begun = monotonic()
        try:
            answer = self._exchange(memoryview(asked), what, begun + limit, limit)
        except BaseException:
            self.kill("it was interrupted")
            raise
        self.slowest = max(self.slowest, monotonic() - begun)
        return answer

    def _exchange(self, unsent: memoryview, what: str, deadline: float, limit: float) -> bytes:
        unsent = self._send(unsent)
        if unsent:
            self._selector.register(self._in, EVENT_WRITE)
        heard, looked = self._heard, 0
        while (end := heard.find(b"\n", looked)) < 0 and len(heard) <= MOST_BYTES:
            looked = len(heard)
            left = deadline - monotonic()
            if left <= 0:
                part = ", only the beginning of a line" if heard else ""
                raise self.failed(EngineTimeout, f"no answer to {what} within {limit:g} s{part}")
            ready = self._selector.select(min(left, LOOK))
            for key, _ in ready:
                if key.fd == self._in:
                    unsent = self._send(unsent)
                    if not unsent:
                        self._selector.unregister(self._in)
                elif self._listen(key.fd) is None and key.fd == self._out:
                    raise self._exited(what)
            if not ready and self._gone():
                # Somebody else may hold its output open: then that does not end.
                self._listen(self._out)
                if len(heard) == looked:
                    raise self._exited(what)
        if not 0 <= end <= MOST_BYTES:
            most = f"{MOST_BYTES:,} bytes"
            raise self.failed(EngineGarbage, f"answered {what} by a line of more than {most}")
        if unsent:
            raise self.failed(EngineGarbage, f"answered {what} before it had read all of it")
        answer = bytes(heard[:end])
        del heard[: end + 1]
        return answer

    def check_silence(self, what: str) -> None:
        """After a good answer: nothing more has been said, as far as can be known yet.

        Raises:
            EngineGarbage: it has.
        """
        if self._heard:
            why = f"answered {what} by more than one line; the next is {quoted(self._heard)}"
            raise self.failed(EngineGarbage, why)

    def _send(self, unsent: memoryview) -> memoryview:
        """Write what the pipe takes; what is left. To one who does not listen, nothing is."""
        try:
            return unsent[os.write(self._in, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            return unsent[:0]

    def _listen(self, pipe: int) -> int | None:
        """Read some of what is there; how many bytes. None: nothing will come any more."""
        try:
            said = os.read(pipe, CHUNK)
        except BlockingIOError:
            return 0
        if not said:
            self._selector.unregister(pipe)
            return None
        if pipe == self._out:
            self._heard += said
        else:
            self._stderr += said
            del self._stderr[:-KEPT]
        return len(said)

    def _gone(self) -> bool:
        """It has ended. It is not reaped by this, so its process group keeps its number (except
        on macOS before Python 3.13, where a look reaps)."""
        if not hasattr(os, "waitid"):
            return self._popen.poll() is not None
        try:
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return seen is not None

    def _ends(self, seconds: float) -> bool:
        """Wait for its end, and let it write what it likes meanwhile."""
        if self._in in self._selector.get_map():
            self._selector.unregister(self._in)
        deadline, pause = monotonic() + seconds, 0.001
        while not self._gone():
            left = deadline - monotonic()
            if left <= 0:
                return False
            for key, _ in self._selector.select(min(left, pause)):
                self._listen(key.fd)
                self._heard.clear()
            pause = min(2 * pause, LOOK)
        return True

    def _exited(self, what: str) -> EngineFailed:
        cut = bool(self._heard)
        own = self._ends(self.grace)
        self.kill()
        code = self._popen.returncode if own else None
        if code is None:
            how = "closed its standard output"
        elif code < 0:
            how = f"was killed by {_signal(-code)}"
        else:
            how = f"exited with code {code}"
        when = "in the middle of its answer to" if cut else "before it answered"
        error = self._failure(EngineExited, f"{how} {when} {what}")
        error.code = code if code is not None and code >= 0 else None
        error.signal = -code if code is not None and code < 0 else None
        return error

    def failed(self, kind: type[EngineFailed], what: str) -> EngineFailed:
        """Kill it for this."""
        self.kill()
        return self._failure(kind, what)

    def _failure(self, kind: type[F], what: str) -> F:
        self.over = f"it is gone: {what}"
        said = self._stderr.decode("utf-8", "backslashreplace").splitlines()
        return kind(self.name, what, tuple(text for text in said if text.strip())[-20:])

    def close(self) -> None:
        """Ask nothing more, and wait for its end; then SIGTERM; then SIGKILL."""
        if self.over is not None:
            return
        try:
            self._close_input()
            if not self._ends(self.grace):
                with suppress(OSError):
                    os.killpg(self.pid, signal.SIGTERM)
                self._ends(self.grace)
        finally:
            self.kill("it was closed")

    def _close_input(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def kill(self, why: str = "it was killed") -> None:
        """End it and all that it has started, now."""
        if self.over is not None:
            return
        self.over = why
        _slay(self._popen)
        for _ in range(DRAINED):
            if self._err not in self._selector.get_map() or not self._listen(self._err):
                break
        self._selector.close()
        self._bury()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _slay(popen: Popen[bytes]) -> None:
    """Kill a process and its group, and reap it."""
    if popen.returncode is None:
        with suppress(OSError):
            os.killpg(popen.pid, signal.SIGKILL)
    with suppress(TimeoutExpired):  # one that the kernel itself does not let go
        popen.wait(GRACE)


def _bury(popen: Popen[bytes]) -> None:
    _slay(popen)
    for pipe in (popen.stdin, popen.stdout, popen.stderr):
        if pipe is not None:
            pipe.close()
