"""Any Python engine behind the wire protocol of `spec/PROTOCOL.md`.

    python -m servecheck.engines.serve servecheck.engines.fast.adapters:FastLoop

Theory of operation. `serve` reads a line (`engines.wire`), does what it says with the engine that
the last `hello` has built, and writes a line. Whatever the engine raises becomes an `error` answer;
the loop ends with its input.

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
from typing import BinaryIO

import attrs
from attrs import define, field

from servecheck.engines.protocol import (
    AnyEngine,
    EngineError,
    EngineFactory,
    KeyName,
    Level,
    PoolEngine,
    SeenPool,
    StateEngine,
    StepEngine,
    Unsupported,
)
from servecheck.engines.wire import (
    MOST_BYTES,
    NAMES,
    REQUESTS,
    VERSION,
    Acquire,
    Carried,
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
from servespec.actions import Abort, Complete, Discard, ResetCache, Schedule, Submit
from servespec.errors import ConfigError

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
