"""Which engine is to be checked: a name, `module:factory`, or a process that speaks JSON lines.

Theory of operation. All of them become a `Subject`; `zoo:ENTRY` is the fast engine with a fault.
What is wrong with the words themselves is told here, in one line that repeats them; what is wrong
with the engine it tells when the first one is made. Modules are looked for in the current folder
too, as a factory under test mostly lies there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING

from servecheck.cli.terminal import BadInput, escaped

if TYPE_CHECKING:
    from servecheck.engines.protocol import AnyEngine, EngineFactory, Level
    from servecheck.engines.whole import MakeWhole
    from servecheck.lockstep.deviations import Deviation
    from servecheck.lockstep.subject import Subject
    from servecheck.zoo.entry import Entry
    from servespec.config import Config
    from servespec.policy import Policy

LEVELS = ("pool", "steps", "state")
ZOO = "zoo:"
NAMES = ("fast", "vllm", f"{ZOO}ENTRY")


@contextmanager
def subject_of(
    engine: str | None,
    command: str | None,
    level: str | None,
    deviations: tuple[Deviation, ...],
    timeout: float | None = None,
    until: float | None = None,
) -> Iterator[Subject]:
    """The engines to check; neither name nor command is the fast engine through its refinement.

    Args:
        timeout: seconds that a command has for an answer, and for its start.
        until: when the search ends, by the monotonic clock; a command has little longer.

    Raises:
        BadInput: there is no such engine.
    """
    from servecheck.engines.fast.refine import Refinement
    from servecheck.engines.protocol import Level
    from servecheck.lockstep.subject import Subject

    if engine is not None and command is not None:
        raise BadInput("--engine and --command name two engines; give one of them")
    if level is not None and level not in LEVELS:
        raise BadInput(f"--level {escaped(level)} is unknown; take one of {', '.join(LEVELS)}")
    if timeout is not None and command is None:
        raise BadInput("--timeout is about a process; name it by --command, or drop it")
    if timeout is not None and not (isfinite(timeout) and timeout > 0):
        raise BadInput(f"--timeout {timeout:g} is no time to wait; give seconds above 0")
    asked = None if level is None else Level[level.upper()]
    if command is not None:
        from servecheck.engines.subprocess import HELLO_TIMEOUT, TIMEOUT, CommandFactory

        limits = (TIMEOUT, HELLO_TIMEOUT) if timeout is None else (timeout, timeout)
        with CommandFactory(command, *limits, until=until) as factory:
            yield Subject.of(factory, deviations, asked)
    elif engine is not None and engine.startswith(ZOO):
        yield _planted(engine, deviations, asked)
    elif engine is not None:
        yield Subject.of(factory_of(engine, asked), deviations, asked)
    elif asked is not None:
        raise BadInput("--level is about an engine; name it by --engine or --command")
    else:
        yield Subject(Refinement, deviations)


def factory_of(engine: str, level: Level | None) -> EngineFactory:
    """The factory that a name or `module:factory` stands for.

    Raises:
        BadInput: there is none.
    """
    from servecheck.engines.protocol import Level

    if engine == "fast":
        from servecheck.engines.fast.adapters import FastCache, FastLoop

        return FastCache if level is Level.POOL else FastLoop
    if engine == "vllm":
        from servecheck.engines.vllm import VllmLoop, VllmPool

        return VllmPool if level is Level.POOL else VllmLoop
    return _imported(engine)


def fast_engine(name: str | None) -> MakeWhole | None:
    """The fast engine, or one with a fault, where its whole state and its events are asked for;
    None: the name is of another engine.

    Raises:
        BadInput: there is no such fault.
    """
    if name == "fast":
        from servecheck.engines.whole import FastWhole

        return FastWhole
    return _entry(name).whole() if name is not None and name.startswith(ZOO) else None


def _entry(engine: str) -> Entry:
    """The fault of the zoo that an engine is named for.

    Raises:
        BadInput: there is no such fault.
    """
    from servecheck.zoo import ENTRIES

    entry = ENTRIES.get(engine.removeprefix(ZOO))
    if entry is None:
        raise BadInput(f"--engine {escaped(engine)}: no such entry; see servecheck zoo --list")
    return entry


def _planted(engine: str, deviations: tuple[Deviation, ...], level: Level | None) -> Subject:
    """Engines with a fault of the zoo; unless a level is asked for, they are listened to as well.

    Raises:
        BadInput: there is no such fault.
    """
    from servecheck.lockstep.subject import Subject
    from servecheck.zoo.told import subject_of as listened_to

    entry = _entry(engine)
    if level is not None:
        return Subject.of(entry.make, deviations, level)
    subject = listened_to(entry)
    subject.deviations = deviations
    return subject


def _imported(engine: str) -> EngineFactory:
    said = f"--engine {escaped(engine)}"
    module, colon, name = engine.partition(":")
    if not colon or not module or not name:
        known = ", ".join(NAMES)
        raise BadInput(f"{said}: no such engine; write module:factory, or one of {known}")
    if "" not in sys.path:
        sys.path.append("")
    try:
        found: object = import_module(module)
    except (Exception, SystemExit) as error:
        what = escaped(f"{type(error).__name__}: {error}")
        raise BadInput(f"{said}: {module} does not import: {what}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise BadInput(f"{said}: {module} has no {name}; name what makes an engine")
    if not callable(found):
        kind = type(found).__name__
        raise BadInput(f"{said}: {name} is no factory but a {kind}; it must take (config, policy)")
    call = found

    def factory(config: Config, policy: Policy) -> AnyEngine:
        made: AnyEngine = call(config, policy)
        return made

    return factory
