"""Programs that once fell, tried before anything is searched.

Theory of operation. A campaign writes the smallest program on which something fell into a folder of
failures. The next campaign begins with what lies there: whoever has mended a fault knows at once,
and whoever has not is not kept waiting. A program that another engine has left is as good as any;
one that this engine cannot have is passed over. A file that is no trace, or a program that the
specification no longer carries out, is told and passed over, so nothing that lies in the folder
keeps a search from going on. Nothing of this is counted with the search, which is the same with
and without.

    folder ──▶ retry ──▶ again: Walk beside the engine ──▶ Retrial ──▶ judged like what is found
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import define, frozen

from servecheck.engines.protocol import Unsupported
from servecheck.fuzz.judge import Gone, beside
from servecheck.fuzz.summary import Retried
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.lockstep.follow import Follower
from servecheck.lockstep.subject import Subject
from servecheck.trace.model import Trace, TraceError
from servecheck.trace.read import read_trace
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


def again(walk: Walk, trace: Trace) -> Again:
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
    retried = Retried()
    files = sorted(folder.glob("*.jsonl"))
    # What is compared here is not the search's.
    mine = subject and Subject(subject.start, subject.deviations, subject.capabilities)
    for number, file in enumerate(files):
        if number >= MOST or not goes_on():
            retried.left = len(files) - number
            break
        try:
            trace = read_trace(file)
            follower: Follower | None = None if mine is None else beside(mine, trace.machine)
            found = again(Walk(trace.machine, properties, follower=follower), trace)
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
            return Retrial(retried, found.walk, found.fall)
        retried.tried += found.unable is None
        retried.unfit += found.unable is not None
    return Retrial(retried)
