"""Faults of preemption: who gives way, when, how much, and what becomes of it."""

from __future__ import annotations

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.zoo.entry import fault
from servespec.events import Reason

# --- who gives way, and until when -----------------------------------------------------------


@fault("victim-choice-or-stop", expects="PRE-1", needs="a victim that is not the one who asks")
class GivesWayItself(Pass):
    """Who finds no room is preempted itself; no younger one is asked.

    The oldest requests lose their work to the newest.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        self.preempt(i)
        return i, False


@fault("victim-choice-or-stop", expects="APPLY-1", needs="a request alone that finds no room")
class AloneIsAnError(Pass):
    """Where nobody else can give way the engine stops.

    One request that does not fit ends the service for all.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        if len(self.e.running) == 1:
            raise RuntimeError("nobody can be preempted")
        return super().make_room(i, request, need)


@fault("missed-wake-up", expects="WRK-1", needs="no room for the second of a pass")
class OnlyWhenNothingRuns(Pass):
    """Somebody is preempted only if nothing at all could be scheduled.

    Who finds no room waits, step after step.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        if not self.plan.requests:
            return super().make_room(i, request, need)
        self.skip(request, Reason.NO_BLOCKS)
        return i + 1, False


@fault("plan-vs-execution-demand", expects="APPLY-1", needs="two blocks are missing")
class OneBlockIsEnough(Pass):
    """Preemption stops when one block is free, whatever the step needs.

    The allocation that follows fails.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        return super().make_room(i, request, 1)


@fault("off-by-one", expects="APPLY-1", needs="one block is missing")
class OneBlockShort(Pass):
    """The demand of the check is one block smaller than that of the step.

    A text at the edge of a block is counted by its length, not by what is stored of it.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        return super().make_room(i, request, need - 1)


@fault("unit-or-rounding-mismatch", expects="APPLY-1", needs="several missing blocks, one free")
class RoomInTokens(Pass):
    """Free tokens are compared with what is a number of blocks.

    Several requests begin a block in one step, and the pool is empty.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        if need <= self.e.pool.free * self.e.size:
            return i, True
        return super().make_room(i, request, need)


# --- a victim that this pass has scheduled -----------------------------------------------------


@fault("budget-not-charged", expects="WRK-1", needs="a victim by priority, scheduled already")
class BudgetLost(Pass):
    """The tokens of a victim that was scheduled in this pass stay in the plan's sum.

    Those behind it get less than there is.
    """

    def preempt(self, index: int) -> None:
        left = self.left
        super().preempt(index)
        self.left = left


@fault("mirror-desync", expects="PLAN-2", needs="a victim by priority, scheduled already")
class VictimStaysScheduled(Pass):
    """A victim leaves the running list, and stays in the plan.

    The worker computes with blocks that are somebody else's.
    """

    def preempt(self, index: int) -> None:
        self.e._send_back(index)
        self.preempted += 1


@fault("victim-choice-or-stop", expects="WRK-1", needs="a victim by priority, before the cursor")
class CursorNotMoved(Pass):
    """A victim before the cursor moves the list, and the cursor stays.

    The next request is left out of the step.
    """

    def make_room(self, i: int, request: FastRequest, need: int) -> tuple[int, bool]:
        at, found = super().make_room(i, request, need)
        return (i if found else at), found


# --- what becomes of it ------------------------------------------------------------------------


@fault(
    "starvation-or-thrash-by-policy", expects="QUE-1", needs="somebody preempted, somebody waits"
)
class ToTheTail(FastEngine):
    """Who was preempted waits behind those who never ran.

    Its work is lost, and it is overtaken; under load it never ends.
    """

    def _wait(self, request: FastRequest, preempted: bool) -> None:
        super()._wait(request, preempted=False)


@fault(
    "release-missing-on-exit-path", expects="OWN-3", needs="a table longer than what is computed"
)
class OnlyComputedIsReleased(FastEngine):
    """Who is preempted gives back the blocks of what it has computed, not those of its table.

    Blocks taken for what comes next are lost.
    """

    def _send_back(self, index: int) -> None:
        request = self.running[index]
        del request.table[-(-request.computed // self.size) :]
        super()._send_back(index)


@fault("mirror-desync", expects="REQ-1", needs="somebody preempted who has output")
class OutputDropped(FastEngine):
    """Who is preempted loses its output, while the counters beside it stay.

    Answers repeat themselves, or end early.
    """

    def _send_back(self, index: int) -> None:
        request = self.running[index]
        super()._send_back(index)
        del request.text[request.prompt :]


@fault("computed-counter-wrong", expects="REQ-1", needs="somebody preempted who has drafts")
class DraftsBecomeText(FastEngine):
    """Drafts of who is preempted stay in its text.

    When it is computed again they count as accepted.
    """

    def _send_back(self, index: int) -> None:
        self.running[index].text += self.running[index].drafts
        super()._send_back(index)


@fault(
    "mirror-desync",
    expects="CON-1",
    needs="somebody preempted between two decodes",
    masked="admission measures the new table",
)
class LimitKeptOverPreemption(FastEngine):
    """How far a table goes is remembered when the table has gone.

    A number that holds for one stay in the batch was kept for the next, in another place.
    """

    def _send_back(self, index: int) -> None:
        request = self.running[index]
        steady = request.steady
        super()._send_back(index)
        request.steady = steady
