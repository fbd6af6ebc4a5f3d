"""An engine in any language: a process that speaks JSON lines, as `spec/PROTOCOL.md` says.

Theory of operation. `command_engine` starts a command, says hello, and returns an engine of the
level that the process says it has. Each of its methods is one line to the standard input of the
process, and one line from its standard output:

    method ──▶ Link.ask ──line──▶ Process.exchange ══▶ stdin
                   ◀──decode──line──────┤ ◀═══════════ stdout, up to the end of the line
                                        └ ◀═══════════ stderr, whose end is kept

Nothing that the process does holds the checker up. One loop serves all three pipes, without
blocking and under one time limit, so a process may flood them, stop in the middle of a line, read
nothing, or be gone. What it answers carries the number of the question, and is decoded strictly.
At the first offence its whole process group is killed, it is reaped, and the offence is raised with
the last that it wrote to stderr. The same happens if the checker is interrupted, and if somebody
forgets to close an engine.

An answer that says `error` is no offence: it is raised as `EngineRaised`, and the process lives.
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
from types import TracebackType
from typing import Self, TypeVar

from attrs import define, field

from servecheck.engines.protocol import (
    Capabilities,
    EngineError,
    EngineGone,
    Level,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenState,
    Unsupported,
)
from servecheck.engines.serve import (
    MOST_BYTES,
    NAMES,
    VERSION,
    Acquire,
    Clear,
    Declined,
    Done,
    Extend,
    Failed,
    Hail,
    Hello,
    Match,
    Nothing,
    Publish,
    Release,
    Request,
    SeePool,
    SeeState,
    ShownOutcome,
    ShownPool,
    ShownState,
    Taken,
    line,
)
from servecheck.strict import Refused, fields_of, parse
from servecheck.trace.codec import decode
from servespec.actions import Abort, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.policy import Policy
from servespec.pool import Blocks

TIMEOUT = 10.0
"""Seconds for an answer."""
HELLO_TIMEOUT = 60.0
"""Seconds for the answer to `hello`: an engine may have a model to load."""
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
        last = f"; its stderr ends: {' | '.join(_short(text) for text in stderr[-3:])}"
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


def _short(text: str, most: int = 160) -> str:
    """A text on one line, with what does not print written out, cut short."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _shown(said: bytes | bytearray) -> str:
    return f"'{_short(said[:CHUNK].decode('utf-8', 'backslashreplace'), 80)}'"


# --- the process --------------------------------------------------------------------------------


class Process:
    """A process that answers lines by lines, or is killed.

    Raises:
        EngineStartFailed: it cannot be started.
    """

    def __init__(self, words: Sequence[str], grace: float) -> None:
        self.name = _short(shlex.join(words), 60)
        self.grace = grace
        self.asked = 0
        """Questions so far; each has its number."""
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
        try:
            return self._exchange(memoryview(asked), what, limit)
        except BaseException:
            self.kill("it was interrupted")
            raise

    def _exchange(self, unsent: memoryview, what: str, limit: float) -> bytes:
        deadline = monotonic() + limit
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
            why = f"answered {what} by more than one line; the next is {_shown(self._heard)}"
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


# --- questions and answers ----------------------------------------------------------------------

R = TypeVar("R")


@define(eq=False)
class Link:
    """What one engine asks its process."""

    process: Process
    timeout: float
    over: str | None = None
    """Why this engine can ask nothing any more, though its process may live."""

    def ask(self, request: Request, kind: type[R]) -> R:
        """Ask for an answer of this kind.

        Raises:
            EngineFailed: there is none; the process has been killed.
            EngineRaised: the engine answers with an error.
            EngineError: the engine cannot be asked any more.
        """
        what, answer = self._exchange(request, self.timeout)
        try:
            return decode(kind, answer)
        except Refused as refused:
            raise self._garbage(what, refused) from None

    def hello(self, config: Config, policy: Policy, limit: float) -> Capabilities:
        """Make the process an engine of these sizes and choices.

        Raises:
            Unsupported: it cannot be such an engine.
            EngineError: as for `ask`.
        """
        try:
            what, answer = self._exchange(Hello(VERSION, config, policy), limit)
        except EngineRaised as error:
            why = f"answered hello with an error: {error}"
            raise self.process.failed(EngineStartFailed, why) from None
        try:
            if "unsupported" in answer:
                raise Unsupported(f"{self.process.name}: {decode(Declined, answer).unsupported}")
            spoken = answer.get("protocol")
            if isinstance(spoken, int) and spoken != VERSION:
                why = f"speaks protocol {spoken}; this checker speaks {VERSION}"
                raise self.process.failed(EngineStartFailed, why)
            return decode(Hail, answer).capabilities
        except Refused as refused:
            raise self._garbage(what, refused) from None

    def _exchange(self, request: Request, limit: float) -> tuple[str, dict[str, object]]:
        """How the question is called, and the fields of its answer but `seq`."""
        process, verb = self.process, NAMES[type(request)]
        over = self.over or process.over
        if over is not None:
            raise EngineError(f"{process.name}: cannot be asked {verb}: {over}")
        seq = process.asked
        what = f"{verb} (request {seq})"
        try:
            asked = line(seq, request, verb=verb)
        except Refused as refused:
            raise EngineError(f"{what} cannot be written: {refused.what}") from None
        if len(asked) > MOST_BYTES + 1:
            raise EngineError(f"{what} is a line of more than {MOST_BYTES:,} bytes")
        process.asked += 1
        said = process.exchange(asked, what, limit)
        try:
            answer = dict(fields_of(parse(said)))
            number = answer.pop("seq", None)
            if type(number) is not int or number != seq:
                raise Refused(f"expected {seq}", path=["seq"])
            error = decode(Failed, answer).error if "error" in answer else None
        except Refused as refused:
            raise self._garbage(what, refused, said) from None
        process.check_silence(what)
        if error is not None:
            raise EngineRaised(error)
        return what, answer

    def _garbage(self, what: str, refused: Refused, said: bytes | None = None) -> EngineFailed:
        where = "" if refused.where is None else f"{refused.where}: "
        of = "" if said is None else f" in {_shown(said)}"
        why = f"answered {what} wrongly: {where}{refused.what}{of}"
        return self.process.failed(EngineGarbage, why)

    def close(self) -> None:
        """End the process, if it is still this engine's."""
        if self.over is None:
            self.process.close()


# --- engines ------------------------------------------------------------------------------------


@define(eq=False)
class _Command:
    """What the engines of all levels share. Closing one ends its process."""

    capabilities: Capabilities
    link: Link

    @property
    def pid(self) -> int:
        return self.link.process.pid

    def close(self) -> None:
        """End the process: at once if it agrees, in two times `grace` if not."""
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class CommandPool(_Command):
    """L1: the pool of a process."""

    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        return self.link.ask(Match(namespace, text, limit), Taken).blocks

    def acquire(self, hits: Blocks) -> None:
        self.link.ask(Acquire(hits), Nothing)

    def extend(self, count: int) -> Blocks:
        return self.link.ask(Extend(count), Taken).blocks

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        self.link.ask(Publish(table, namespace, text, start, stop), Nothing)

    def release(self, table: Blocks) -> None:
        self.link.ask(Release(table), Nothing)

    def clear(self) -> bool:
        return self.link.ask(Clear(), Done).done

    def see_pool(self) -> SeenPool:
        return self.link.ask(SeePool(), ShownPool).seen


class CommandSteps(_Command):
    """L2: the serving loop of a process."""

    def submit(self, request: Submit) -> bool:
        return self.link.ask(request, Done).done

    def schedule(self) -> SeenPlan:
        return self.link.ask(Schedule(), SeenPlan)

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        return self.link.ask(Complete(tuple(outputs)), ShownOutcome).seen

    def discard(self) -> None:
        self.link.ask(Discard(), Nothing)

    def abort(self, request_id: str) -> bool:
        return self.link.ask(Abort(request_id), Done).done

    def reset_cache(self, preempt_running: bool) -> bool:
        return self.link.ask(ResetCache(preempt_running), Done).done


class CommandState(CommandSteps):
    """L3: the serving loop of a process, whose state can be read."""

    def see_state(self) -> SeenState:
        return self.link.ask(SeeState(), ShownState).seen


CommandEngine = CommandPool | CommandSteps | CommandState

_KINDS: dict[Level, type[CommandEngine]] = {
    Level.POOL: CommandPool,
    Level.STEPS: CommandSteps,
    Level.STATE: CommandState,
}


@define(eq=False)
class CommandFactory:
    """A command as an `EngineFactory`: one process, which becomes one engine after the other.

    Making the next engine is one line instead of the start of a process, and is the end of the one
    before. A process that failed or was closed is started anew.
    """

    command: Sequence[str] | str
    timeout: float = TIMEOUT
    hello_timeout: float = HELLO_TIMEOUT
    grace: float = GRACE
    _link: Link | None = field(init=False, default=None)

    def __call__(self, config: Config, policy: Policy) -> CommandEngine:
        """An engine of these sizes and choices.

        Raises:
            Unsupported: the command cannot be such an engine.
            EngineFailed: it cannot be started, or does not answer `hello` as it must.
        """
        before = self._link
        if before is None or before.process.over is not None:
            process = Process(words_of(self.command), self.grace)
        else:
            process, before.over = before.process, "its process is another engine now"
        self._link = link = Link(process, self.timeout)
        can = link.hello(config, policy, self.hello_timeout)
        return _KINDS[can.level](can, link)

    def close(self) -> None:
        """End the process."""
        if self._link is not None:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def words_of(command: Sequence[str] | str) -> Sequence[str]:
    """The words of a command; a text is split as a shell would, and no shell sees it.

    Raises:
        EngineStartFailed: there are none.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise EngineStartFailed(_short(str(command)), f"is no command: {error}") from None
    if not words:
        raise EngineStartFailed("''", "is no command: it is empty")
    return words


def command_engine(
    command: Sequence[str] | str,
    config: Config,
    policy: Policy,
    timeout: float = TIMEOUT,
    *,
    hello_timeout: float = HELLO_TIMEOUT,
    grace: float = GRACE,
) -> CommandEngine:
    """A command as an engine of these sizes and choices, in a process of its own: close it, or use
    it in a `with`.

    Args:
        timeout: seconds for an answer.
        hello_timeout: seconds for the first one.
        grace: seconds to end in when it is closed, and again after SIGTERM.

    Raises:
        Unsupported: the command cannot be such an engine.
        EngineFailed: it cannot be started, or does not answer `hello` as it must.
    """
    factory = CommandFactory(command, timeout, hello_timeout, grace)
    try:
        return factory(config, policy)
    except BaseException:
        factory.close()
        raise
