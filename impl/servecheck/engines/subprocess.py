"""An engine in any language: a process that speaks JSON lines, as `spec/PROTOCOL.md` says.

Theory of operation. `command_engine` starts a command, says hello, and returns an engine of the
level that the process says it has. Each of its methods is one line to the standard input of the
process, and one line from its standard output:

    method ──▶ Link.ask ──line──▶ Process.exchange (`engines.process`)
                   ◀──decode──line──────┘

What is answered carries the number of the question, and is decoded strictly. At the first offence
the process is killed, and the offence is raised. An answer that says `error` is no offence: it is
raised as `EngineRaised`, and the process lives.

Nobody waits for longer than `timeout`; and where a search has an end (`until`), not much beyond it:
for `GRACE` seconds more than the slowest answer so far took.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar

from attrs import define, field

from servecheck.engines.process import (
    GRACE,
    EngineFailed,
    EngineGarbage,
    EngineRaised,
    EngineStartFailed,
    Process,
    quoted,
    short,
)
from servecheck.engines.protocol import (
    Capabilities,
    EngineError,
    Level,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenState,
    Unsupported,
)
from servecheck.engines.wire import (
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


class Closing:
    """Something to close, also by the end of a `with`."""

    def close(self) -> None:
        """End it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# --- questions and answers ----------------------------------------------------------------------

R = TypeVar("R")


@define(eq=False)
class Link:
    """What one engine asks its process."""

    process: Process
    timeout: float
    until: float | None = None
    """When a search ends, by the monotonic clock: nobody waits much longer."""
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
        if self.until is not None:
            left = max(self.until - monotonic(), 0.0)
            limit = min(limit, left + GRACE + process.slowest)
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
        of = "" if said is None else f" in {quoted(said)}"
        why = f"answered {what} wrongly: {where}{refused.what}{of}"
        return self.process.failed(EngineGarbage, why)

    def close(self) -> None:
        """End the process, if it is still this engine's."""
        if self.over is None:
            self.process.close()


# --- engines ------------------------------------------------------------------------------------


@define(eq=False)
class _Command(Closing):
    """What the engines of all levels share. Closing one ends its process."""

    capabilities: Capabilities
    link: Link

    @property
    def pid(self) -> int:
        return self.link.process.pid

    def close(self) -> None:
        """End the process: at once if it agrees, in two times `grace` if not."""
        self.link.close()


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
class CommandFactory(Closing):
    """A command as an `EngineFactory`: one process, which becomes one engine after the other.

    Making the next engine is one line instead of the start of a process, and is the end of the one
    before. A process that failed or was closed is started anew.
    """

    command: Sequence[str] | str
    timeout: float = TIMEOUT
    hello_timeout: float = HELLO_TIMEOUT
    grace: float = GRACE
    until: float | None = None
    """When the search ends for which the engines are made, by the monotonic clock."""
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
        self._link = link = Link(process, self.timeout, self.until)
        can = link.hello(config, policy, self.hello_timeout)
        return _KINDS[can.level](can, link)

    def close(self) -> None:
        """End the process."""
        if self._link is not None:
            self._link.close()


def words_of(command: Sequence[str] | str) -> Sequence[str]:
    """The words of a command; a text is split as a shell would, and no shell sees it.

    Raises:
        EngineStartFailed: there are none.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise EngineStartFailed(short(str(command)), f"is no command: {error}") from None
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
