"""The wire protocol of `spec/PROTOCOL.md` as classes, and any Python engine behind it.

    python -m servecheck.engines.serve servecheck.engines.fast.adapters:FastLoop

Theory of operation. A verb is a class of its arguments and a class of its answer (`REQUESTS`,
`ANSWERS`); `servecheck.trace.codec` takes both to JSON and back, strictly. `serve` reads a line,
does what it says with the engine that the last `hello` has built, and writes a line. Whatever the
engine raises becomes an `error` answer; the loop ends with its input.

Standard output belongs to the protocol. So before the engine's module is imported, file descriptor
1 is made another name of standard error: what an engine prints is a log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import BinaryIO, Literal

import attrs
from attrs import define, field, frozen

from servecheck.engines.protocol import (
    AnyEngine,
    Capabilities,
    Copies,
    EngineError,
    EngineFactory,
    KeyName,
    Level,
    PoolEngine,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
    StateEngine,
    StepEngine,
    Unsupported,
    Verb,
)
from servecheck.strict import Refused, fields_of, parse
from servecheck.trace.codec import decode, encode
from servespec.actions import Abort, Complete, Discard, ResetCache, Schedule, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.events import Reason
from servespec.policy import Policy
from servespec.pool import Blocks

VERSION = 1
"""Of the protocol."""
MOST_BYTES = 1 << 24
"""Of a line, its end not counted."""

# --- what is asked; the verbs of L2 and L3 are the specification's actions ----------------------


@frozen
class Hello:
    """Begin, or begin anew: from now on the process is an engine of these sizes and choices."""

    protocol: int
    config: Config
    policy: Policy


@frozen
class Match:
    namespace: Namespace
    text: Tokens
    limit: int


@frozen
class Acquire:
    hits: Blocks


@frozen
class Extend:
    count: int


@frozen
class Publish:
    table: Blocks
    namespace: Namespace
    text: Tokens
    start: int
    stop: int


@frozen
class Release:
    table: Blocks


@frozen
class Clear:
    pass


@frozen
class SeePool:
    pass


@frozen
class SeeState:
    pass


# --- what is answered; a plan is a `SeenPlan` ---------------------------------------------------


@frozen
class Hail:
    """The answer to `hello`: what the engine is, and can do."""

    protocol: int
    name: str
    version: str
    level: Literal["pool", "steps", "state"]
    cannot: tuple[str, ...] | None = None

    @staticmethod
    def of(can: Capabilities) -> Hail:
        level = can.level
        if level is Level.EVENTS:
            raise Unsupported(f"{can.name} has level EVENTS, which has no verbs")
        cannot = tuple(sorted(verb.name.lower() for verb in can.cannot))
        return Hail(VERSION, can.name, can.version, _LEVELS[level], cannot)

    @property
    def capabilities(self) -> Capabilities:
        """What is said here.

        Raises:
            Refused: something in `cannot` is unknown.
        """
        for at, name in enumerate(self.cannot or ()):
            if name not in _VERBS:
                raise Refused(f"expected one of {', '.join(_VERBS)}", path=[at, "cannot"])
        cannot = frozenset(_VERBS[name] for name in self.cannot or ())
        return Capabilities(self.name, self.version, Level[self.level.upper()], cannot)


_LEVELS: dict[Level, Literal["pool", "steps", "state"]] = {
    Level.POOL: "pool",
    Level.STEPS: "steps",
    Level.STATE: "state",
}
_VERBS = {verb.name.lower(): verb for verb in Verb}


@frozen
class Nothing:
    """The answer to a verb that has none."""


@frozen
class Taken:
    blocks: Blocks


@frozen
class Done:
    done: bool
    """False: a legal no, and nothing has changed."""


@frozen
class Carried:
    """`Copies`, whose key has a name that is a text."""

    key: str
    blocks: Blocks


@frozen
class ShownPool:
    """`SeenPool` as it is written."""

    free: Blocks | None = None
    ref_counts: tuple[int, ...] | None = None
    index: tuple[Carried, ...] | None = None

    @property
    def seen(self) -> SeenPool:
        index = None if self.index is None else tuple(Copies(c.key, c.blocks) for c in self.index)
        return SeenPool(self.free, self.ref_counts, index)


@frozen
class ShownState:
    """`SeenState` as it is written."""

    pool: ShownPool | None = None
    running: tuple[SeenRequest, ...] | None = None
    waiting: tuple[SeenRequest, ...] | None = None

    @property
    def seen(self) -> SeenState:
        pool = SeenPool() if self.pool is None else self.pool.seen
        return SeenState(pool, self.running, self.waiting)


@frozen
class Ended:
    id: str
    reason: Reason | None = None


@frozen
class ShownOutcome:
    """`SeenOutcome` as it is written."""

    finished: tuple[Ended, ...]

    @staticmethod
    def of(outcome: SeenOutcome) -> ShownOutcome:
        return ShownOutcome(tuple(Ended(id, reason) for id, reason in outcome.finished))

    @property
    def seen(self) -> SeenOutcome:
        return SeenOutcome(tuple((e.id, e.reason) for e in self.finished))


@frozen
class Declined:
    """An answer to `hello`: the engine cannot have these sizes or choices."""

    unsupported: str


@frozen
class Failed:
    """An answer to any verb."""

    error: str


Request = (
    Hello
    | Match
    | Acquire
    | Extend
    | Publish
    | Release
    | Clear
    | SeePool
    | Submit
    | Schedule
    | Complete
    | Discard
    | Abort
    | ResetCache
    | SeeState
)

REQUESTS: dict[str, type[Request]] = {
    "hello": Hello,
    "match": Match,
    "acquire": Acquire,
    "extend": Extend,
    "publish": Publish,
    "release": Release,
    "clear": Clear,
    "see_pool": SeePool,
    "submit": Submit,
    "schedule": Schedule,
    "complete": Complete,
    "discard": Discard,
    "abort": Abort,
    "reset_cache": ResetCache,
    "see_state": SeeState,
}
NAMES = {kind: verb for verb, kind in REQUESTS.items()}

ANSWERS: dict[str, type] = {
    "hello": Hail,
    "match": Taken,
    "acquire": Nothing,
    "extend": Taken,
    "publish": Nothing,
    "release": Nothing,
    "clear": Done,
    "see_pool": ShownPool,
    "submit": Done,
    "schedule": SeenPlan,
    "complete": ShownOutcome,
    "discard": Nothing,
    "abort": Done,
    "reset_cache": Done,
    "see_state": ShownState,
}


def line(seq: int, said: attrs.AttrsInstance, **more: object) -> bytes:
    """A line that says this; what is None is left out.

    Raises:
        Refused: it has no JSON form.
    """
    fields = attrs.asdict(said, recurse=False, filter=lambda _, value: value is not None)
    return encode({"seq": seq, **more, **fields}) + b"\n"


# --- an engine behind it ------------------------------------------------------------------------


Do = Callable[[Request], attrs.AttrsInstance]
"""Has an engine do what a request says; its answer.

Raises:
    Refused: its level has no such verb.
"""


@define
class Server:
    """Answers lines for the engine that the last `hello` has built."""

    factory: EngineFactory
    _do: Do = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._do = _nobody

    def answer(self, asked: bytes) -> bytes:
        """The line that answers a line.

        Raises:
            Refused: it has no number, so there is no way to answer it.
        """
        fields = dict(fields_of(parse(asked.rstrip(b"\r\n"))))
        try:
            seq = decode(int, fields.pop("seq", None))
        except Refused as refused:
            raise refused.under("seq") from None
        try:
            request = _request(fields)
            said = self._begin(request) if isinstance(request, Hello) else self._do(request)
            return line(seq, said)
        except Unsupported as no:
            return line(seq, Declined(_plain(str(no))))
        except Refused as refused:
            return line(seq, Failed(f"{refused.where or 'this line'}: {refused.what}"))
        except Exception as error:  # the engine's own: it is for the checker to judge
            return line(seq, Failed(_plain(f"{type(error).__name__}: {error}")))

    def _begin(self, hello: Hello) -> Hail:
        self._do = _nobody
        if hello.protocol != VERSION:
            raise Unsupported(f"protocol {hello.protocol}; this engine speaks {VERSION}")
        try:
            engine = self.factory(hello.config, hello.policy)
        except ConfigError as error:
            raise Unsupported(str(error)) from None
        hail = Hail.of(engine.capabilities)
        self._do = _doing(engine)
        return hail


def _nobody(request: Request) -> attrs.AttrsInstance:
    raise Refused("hello comes first", path=["verb"])


def _doing(engine: AnyEngine) -> Do:
    """Does the verbs of this engine's level. Whether it has the methods is asked here, once, for
    Python asks slowly."""
    level = engine.capabilities.level
    if level is Level.POOL and isinstance(engine, PoolEngine):
        return partial(_pool, engine, {})
    if level is Level.STATE and isinstance(engine, StateEngine):
        return partial(_state, engine, {})
    if level is Level.STEPS and isinstance(engine, StepEngine):
        return partial(_steps, engine)
    raise EngineError(
        f"{engine.capabilities.name} says that it has level {level.name}, and lacks methods of it"
    )


Names = dict[KeyName, str]
"""Of keys. They are numbered as they are first seen, so names are equal where keys are."""


def _pool(engine: PoolEngine, names: Names, request: Request) -> attrs.AttrsInstance:
    match request:
        case Match(namespace, text, limit):
            return Taken(engine.match(namespace, text, limit))
        case Acquire(hits):
            engine.acquire(hits)
            return Nothing()
        case Extend(count):
            return Taken(engine.extend(count))
        case Publish(table, namespace, text, start, stop):
            engine.publish(table, namespace, text, start, stop)
            return Nothing()
        case Release(table):
            engine.release(table)
            return Nothing()
        case Clear():
            return Done(engine.clear())
        case SeePool():
            return _shown(names, engine.see_pool())
        case _:
            raise _lacks(request)


def _state(engine: StateEngine, names: Names, request: Request) -> attrs.AttrsInstance:
    if not isinstance(request, SeeState):
        return _steps(engine, request)
    seen = engine.see_state()
    return ShownState(_shown(names, seen.pool), seen.running, seen.waiting)


def _steps(engine: StepEngine, request: Request) -> attrs.AttrsInstance:
    match request:
        case Submit():
            return Done(engine.submit(request))
        case Schedule():
            return engine.schedule()
        case Complete(outputs):
            return ShownOutcome.of(engine.complete(outputs))
        case Discard():
            engine.discard()
            return Nothing()
        case Abort(id):
            return Done(engine.abort(id))
        case ResetCache(preempt_running):
            return Done(engine.reset_cache(preempt_running))
        case _:
            raise _lacks(request)


def _shown(names: Names, pool: SeenPool) -> ShownPool:
    if pool.index is None:
        return ShownPool(pool.free, pool.ref_counts)
    index = (Carried(names.setdefault(c.key, f"k{len(names)}"), c.blocks) for c in pool.index)
    return ShownPool(pool.free, pool.ref_counts, tuple(index))


def _lacks(request: Request) -> Refused:
    return Refused(f"an engine of this level has no {NAMES[type(request)]}", path=["verb"])


def _request(fields: dict[str, object]) -> Request:
    verb = fields.pop("verb", None)
    if not isinstance(verb, str) or verb not in REQUESTS:
        raise Refused(f"expected one of {', '.join(REQUESTS)}", path=["verb"])
    return decode(REQUESTS[verb], fields)


def _plain(text: str) -> str:
    """A text that JSON can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


# --- the process --------------------------------------------------------------------------------


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output, for the protocol alone: whoever prints, prints a log from now on,
    and whoever reads standard input finds it empty."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


def serve(
    engine_factory: EngineFactory,
    requests: BinaryIO | None = None,
    replies: BinaryIO | None = None,
) -> None:
    """Answer requests until there are no more: those of standard input on standard output, which
    then are the protocol's for good, unless others are given.

    Raises:
        Refused: what cannot be answered.
        OSError: nobody takes the answers.
    """
    if requests is None or replies is None:
        requests, replies = own_pipes()
    server = Server(engine_factory)
    while asked := requests.readline(MOST_BYTES + 1):
        replies.write(server.answer(asked))
        replies.flush()


def factory_of(name: str) -> EngineFactory:
    """What `module:factory` names.

    Raises:
        ValueError: there is no such thing; one line says why.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"{name!r} is not of the form module:factory")
    try:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot take {name}: {error}") from None
    if not callable(found):
        raise ValueError(f"{name} cannot be called")
    factory: Callable[..., AnyEngine] = found
    return factory


def main(arguments: Sequence[str]) -> int:
    """Serve what the one argument names. 0: the checker is done; 2: something was wrong."""
    if len(arguments) != 1:
        print("usage: python -m servecheck.engines.serve module:factory", file=sys.stderr)
        return 2
    requests, replies = own_pipes()
    try:
        serve(factory_of(arguments[0]), requests, replies)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Refused as refused:
        print(f"error: {refused.where or 'a line'}: {refused.what}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        with suppress(OSError):
            replies.close()  # the checker is gone: nobody takes what is still to be written
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
