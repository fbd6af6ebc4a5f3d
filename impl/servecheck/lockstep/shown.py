"""Does the trace of a known deviation show it?

Theory of operation. An entry of the register names a trace: the smallest program after which the
engine is known to deviate. Without an engine it can be asked that the trace is there, that it is
legal, and that it ends with the action that the entry names (`checked`). With the engine at hand
the program is run beside it (`shows`): its first divergence must be the one that the entry knows.
If there is none, the engine has been mended, and the entry is stale; so an entry is never called
stale because a search was too short to come upon what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from servecheck.engines.protocol import Unsupported
from servecheck.lockstep.deviations import Deviation
from servecheck.lockstep.follow import Diverged
from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.subject import Subject, parted
from servecheck.trace.model import Trace, TraceError
from servecheck.trace.read import read_trace
from servespec.errors import SpecError


def checked(entry: Deviation) -> Trace:
    """The trace of an entry.

    Raises:
        RegisterError: there is none, it is not legal, or it ends with another action.
    """
    try:
        trace = read_trace(entry.trace)
        machine = trace.machine
        state = machine.initial()
        for action in trace.actions:
            state = machine.apply(state, action).state
    except (TraceError, SpecError) as error:
        raise _wrong(entry, str(error), "name a trace that `servecheck fuzz` has written") from None
    last = type(trace.actions[-1]).__name__ if trace.actions else "nothing"
    if last != entry.action:
        what = f"{entry.trace} ends with {last}, and the deviation shows at {entry.action}"
        raise _wrong(entry, what, "cut the trace after the deviation")
    return trace


def shows(subject: Subject, entry: Deviation) -> bool:
    """The trace of an entry shows its deviation on this engine. False: nothing deviates any more.

    Raises:
        RegisterError: it cannot be run on this engine, or shows something else.
        EngineError: the engine cannot be made, or is gone.
    """
    trace = checked(entry)
    try:
        found = parted(Subject(subject.start), trace.machine, trace.actions)
    except Unsupported as refused:
        what = f"the engine does not take the sizes and choices of {entry.trace}: {refused}"
        raise _wrong(entry, what, "name a trace of this engine") from None
    if found is None:
        return False
    if len(found.actions) < len(trace.actions) or not entry.matches(found.divergence):
        what = f"{entry.trace} shows something else: {Diverged(found.divergence)}"
        raise _wrong(entry, what, "name a trace that shows this deviation first, at its end")
    return True


def shown(subject: Subject) -> frozenset[str]:
    """Ids of those entries for an engine whose traces show that it still deviates.

    Raises:
        RegisterError: a trace is not what it should be.
        EngineError: the engine cannot be made, or is gone.
    """
    said = subject.capabilities
    if said is None:
        return frozenset()
    mine = (d for d in subject.deviations if d.applies(said.name, said.version, said.level))
    return frozenset(entry.id for entry in mine if shows(subject, entry))


def check_traces(entries: Iterable[Deviation]) -> None:
    """Every entry has a trace that is legal and ends as it should, whatever engine it is for.

    Raises:
        RegisterError: one has not.
    """
    for entry in entries:
        checked(entry)


def _wrong(entry: Deviation, what: str, to_do: str) -> RegisterError:
    return RegisterError(entry.register, f"deviation {entry.id!r}, field trace", what, to_do)
