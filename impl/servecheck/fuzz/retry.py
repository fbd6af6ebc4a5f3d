"""Programs that are run again: one that is asked for, and those that once fell.

Theory of operation. A campaign writes the smallest program on which something fell into a folder of
failures. The next campaign begins with what lies there: whoever has mended a fault knows at once,
and whoever has not is not kept waiting. A program that another engine has left is as good as any;
one that this engine cannot have is passed over. What is no trace, or no file, or a program that the
specification no longer carries out, is told and passed over, so nothing that lies in the folder
keeps a search from going on. If only what nobody asks for now fell on it, it is not tried: that it
does not fall would say nothing. Nothing of this is counted with the search, which is the same with
and without.

    folder ──▶ retry ──▶ run_again ──▶ Retrial ──▶ judged like what is found
                 trace ──▶ rerun ───┘ ──▶ Summary
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from time import monotonic

from attrs import define, evolve, frozen

from servecheck.engines.protocol import EngineFactory, Unsupported
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.judge import Gone, Guarded, Judge, beside
from servecheck.fuzz.outcome import Shown
from servecheck.fuzz.outset import as_subject
from servecheck.fuzz.summary import Retried, Spent, Summary, summarised
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.lockstep.follow import Follower
from servecheck.lockstep.report import LOCKSTEP
from servecheck.lockstep.shown import shown
from servecheck.lockstep.subject import Subject
from servecheck.trace.model import Trace, TraceError
from servecheck.trace.read import listed, read_trace
from servespec.errors import ActionDisabled
from servespec.properties import PROPERTIES, Property

MOST = 50
"""Programs that are tried, the first by name."""


@define
class Retrial:
    """Programs tried again, and the walk on which something fell."""

    retried: Retried
    walk: Walk | None = None
    fall: PropertyFell | None = None


@frozen
class Again:
    """A program that was run again."""

    walk: Walk
    fall: PropertyFell | None = None
    unable: str | None = None
    """Why the engine went no further."""


def run_again(walk: Walk, trace: Trace) -> Again:
    """Run the program of a trace, as far as the engine goes along.

    Raises:
        ActionDisabled: the program is not legal.
        Gone: the engine is gone.
    """
    try:
        for action in trace.actions:
            follower = walk.follower
            if follower is not None and not follower.allows(walk.machine, walk.state, action):
                at = len(walk.actions)
                return Again(walk, None, f"the engine says that it cannot do action {at}")
            walk.do(action)
    except PropertyFell as fall:
        if isinstance(fall.__cause__, ActionDisabled):
            raise fall.__cause__ from None
        return Again(walk, fall)
    return Again(walk)


def retry(
    folder: Path,
    subject: Subject | None,
    goes_on: Callable[[], bool],
    properties: Iterable[Property] = tuple(PROPERTIES.values()),
) -> Retrial:
    """Try the programs in a folder, up to the first on which something falls.

    Raises:
        Gone: the engine is gone.
    """
    retried, properties = Retried(), tuple(properties)
    names = frozenset(asked.id for asked in properties)
    files, retried.useless = listed(folder, "*.jsonl")
    # What is compared here is not the search's, unless it takes the place of one.
    mine = subject and Subject(subject.start, subject.deviations, subject.capabilities)
    for number, file in enumerate(files):
        if number >= MOST or not goes_on():
            retried.left += len(files) - number
            break
        try:
            trace = read_trace(file)
            if not _asked(trace, names, mine is not None):
                retried.left += 1
                continue
            follower: Follower | None = None if mine is None else beside(mine, trace.machine)
            found = run_again(Walk(trace.machine, properties, follower=follower), trace)
        except TraceError as error:
            retried.useless += (str(error),)
            continue
        except ActionDisabled as error:
            retried.useless += (f"{file}: no longer legal: {error}; take the file away",)
            continue
        except Unsupported:
            retried.unfit += 1
            continue
        except Gone as gone:
            gone.actions = trace.actions
            raise
        if found.fall is not None:
            retried.tried += 1
            retried.fell = file
            if mine is not None and subject is not None:
                Shown.of(mine).into(subject)
            return Retrial(retried, found.walk, found.fall)
        retried.tried += found.unable is None
        retried.unfit += found.unable is not None
    return Retrial(retried)


def _asked(trace: Trace, names: Collection[str], compared: bool) -> bool:
    """What fell then can fall now."""
    fell = None if trace.verdict is None else trace.verdict.property
    if fell == LOCKSTEP:
        return compared
    return fell not in PROPERTIES or fell in names


def rerun(
    trace: Trace,
    following: EngineFactory | Subject | None = None,
    again: str | None = None,
) -> Summary:
    """The program of a trace once more, every property asked, with an engine beside it. It ends
    undetermined at the first action that the engine says that it cannot do. `again` is the command
    that does the same.

    Raises:
        Unsupported: the engine cannot have these sizes and choices.
        EngineError: the engine cannot be made.
        RegisterError: the trace of a known deviation of this engine does not show it.
        ActionDisabled: the program is not legal.
    """
    subject, begun, counted = as_subject(following), monotonic(), Counted()
    follower = None if subject is None else Guarded(subject(trace.machine))
    still = frozenset() if subject is None else shown(subject)
    walk = Walk(trace.machine, tuple(PROPERTIES.values()), follower=follower)
    done, gone = Again(walk), None
    try:
        done = run_again(walk, trace)
    except Gone as error:
        gone = error
    counted.add(walk)
    judge = Judge(0, subject, still=still, searched=False)
    ended = judge.ended(done.fall, False, gone, walk.actions, shrinks=False, unable=done.unable)
    spent = Spent(0, 0.0, monotonic() - begun, False)
    found = summarised(ended, spent, counted, subject, done.unable)
    if found.report is None:
        return found
    return evolve(found, report=evolve(found.report, replay=again))
