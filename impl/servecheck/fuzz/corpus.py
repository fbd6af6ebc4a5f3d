"""Starts that outlive a campaign: how what is rare was reached, for the next one to begin with.

Theory of operation. A `Guide` learns, while a campaign goes on, how each mark was first reached in
a world. A corpus is a folder of such starts, as ordinary traces: of each mark the few shortest. The
next campaign's guide is taught those of its own worlds before anything is searched, so its walks go
to what is rare from the first second on. What a start is good for is found out by walking it, not
by what the file says: one of an older specification teaches what it still reaches, and one that is
no longer legal, or what is no trace, is told and passed over.

    folder ──▶ Corpus.read ──▶ fitting, taught ──▶ Guide ──▶ Corpus.keep ──▶ folder

A file is named by its content and appears whole, and a campaign takes away only files that it has
read and knows shorter ones for; so campaigns that share a folder lose nothing of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import define, field

from servecheck.engines.protocol import EngineError
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.sizes import Sizes
from servecheck.fuzz.summary import Taught
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.lockstep.subject import Subject
from servecheck.marks import Mark
from servecheck.trace.model import Trace, TraceError, Verdict
from servecheck.trace.read import listed, read_trace
from servecheck.trace.write import MAKE_ROOM, keep
from servespec.actions import Complete, Submit
from servespec.policy import Policy

A_MARK = 3
"""Starts kept of a mark."""
NAME = "start"
"""What their files begin with; others in the folder are let alone."""

Best = dict[Mark, list[Start]]
"""Of each mark the shortest starts, the shortest first."""


def into(best: Best, mark: Mark, starts: Iterable[Start]) -> None:
    """Let starts be among the shortest of a mark, if they are; of equal ones the earlier stays."""
    known = best.setdefault(mark, [])
    known += (start for start in starts if start not in known)
    known.sort(key=lambda start: len(start.actions))
    del known[A_MARK:]


def best_of(guide: Guide) -> Best:
    """The shortest of what a guide has learned."""
    best: Best = {}
    for mark in sorted(guide.starts, key=lambda mark: mark.name):
        into(best, mark, guide.starts[mark].values())
    return best


def walked(start: Start) -> Walk:
    """The start, walked with nobody beside it, and nothing asked.

    Raises:
        PropertyFell: it is not legal.
    """
    walk = Walk(start.machine, (), start.alphabet)
    for action in start.actions:
        walk.do(action)
    return walk


def taught(guide: Guide, starts: Iterable[Start]) -> Guide:
    """The guide, which has learned from starts as if it had seen them."""
    for start in starts:
        guide.learn(walked(start))
    return guide


@define
class Corpus:
    """A folder of starts."""

    folder: Path
    starts: dict[Path, Start] = field(factory=dict)
    """What was read."""
    best: Best = field(factory=dict)
    """What that reaches."""
    told: Taught = field(factory=Taught)

    @staticmethod
    def read(folder: Path) -> Corpus:
        """What lies in a folder; it need not be there yet.

        Raises:
            TraceError: it is no folder, and cannot be made one.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"is no folder and cannot be made one ({error.strerror or error})"
            raise TraceError(folder, None, None, why, "name another folder") from None
        found = Corpus(folder)
        files, found.told.useless = listed(folder, f"{NAME}-*.jsonl")
        for file in files:
            try:
                start = _start(read_trace(file))
                walk = walked(start)
            except TraceError as error:
                found.told.useless += (str(error),)
            except PropertyFell as fall:
                found.told.useless += (f"{file}: not legal: {fall.what}; take the file away",)
            else:
                found.starts[file] = start
                for mark, count in walk.first.items():
                    into(found.best, mark, [_first(start, count)])
        found.told.read = len(found.starts)
        return found

    def fitting(
        self, policy: Policy | None, sizes: Sizes, subject: Subject | None
    ) -> tuple[Start, ...]:
        """The starts in worlds that a campaign with these choices, sizes and engine can have."""
        fit = tuple(s for s in self.starts.values() if _fits(s, policy, sizes, subject))
        self.told.fit = len(fit)
        return fit

    def keep(self, best: Mapping[Mark, Iterable[Start]], seed: int) -> None:
        """Keep the shortest of what was read and what was learned. That a file cannot be written is
        no reason to lose what else the campaign has to say: it is told."""
        mine = {mark: list(starts) for mark, starts in self.best.items()}
        for mark, starts in best.items():
            into(mine, mark, starts)
        wanted = dict.fromkeys(start for starts in mine.values() for start in starts)
        try:
            for start in wanted:
                if not any(_begins(start, other) for other in self.starts.values()):
                    verdict = Verdict("holds", None, "a start")
                    keep(self.folder, NAME, start.machine, start.actions, verdict, seed=seed)
                    self.told.added += 1
            for file, start in self.starts.items():
                if not any(_begins(other, start) for other in wanted):
                    _unlink(file)
                    self.told.removed += 1
        except TraceError as error:
            self.told.useless += (str(error),)


def _fits(start: Start, policy: Policy | None, sizes: Sizes, subject: Subject | None) -> bool:
    machine = start.machine
    if policy is not None and machine.policy != policy:
        return False
    if any(getattr(machine.config, name) != size for name, size in sizes.items()):
        return False
    try:
        if subject is not None:
            subject.make(machine)
    except EngineError:
        return False
    return True


def _start(trace: Trace) -> Start:
    """The start in a trace; there are as many tokens as it shows."""
    return Start(trace.machine, max(2, 1 + max(_tokens(trace), default=0)), trace.actions)


def _tokens(trace: Trace) -> Iterator[int]:
    for action in trace.actions:
        if isinstance(action, Submit):
            yield from action.prompt
        elif isinstance(action, Complete):
            for output in action.outputs:
                yield from output.tokens


def _first(start: Start, count: int) -> Start:
    """Its first actions."""
    return Start(start.machine, start.alphabet, start.actions[:count])


def _begins(start: Start, other: Start) -> bool:
    """The other one goes the way of this one first."""
    return start.machine == other.machine and start.actions == other.actions[: len(start.actions)]


def _unlink(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        why = f"cannot be taken away ({error.strerror or error})"
        raise TraceError(file, None, None, why, MAKE_ROOM) from None
