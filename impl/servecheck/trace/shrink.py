"""Makes a failing run small, and keeps it legal.

Theory of operation. Dropping an action changes all that follows: steps carry other requests,
outputs no longer match their plans, a `Schedule` meets a plan in flight. So every candidate is
first *mended*: the machine walks along it, drops what a state does not offer, and adapts each
`Complete` to the plan that it completes. What is still legal and still fails, and is smaller,
becomes the run to go on from.

    actions ──drop a chunk, simplify a payload──▶ mend ──▶ smaller? ──▶ still_fails? ──▶ keep

Smaller is an order (`size_of`) in which there is no endless way down, so shrinking ends. First the
shortest end of the run that fails by itself is looked for, since what fails is the end; then chunks
go, from half of the run down to one action (delta debugging: Zeller and Hildebrandt, 2002). What is
found is a local minimum under all of these: where leaving out does not help any more, the ways of
`fewer` are tried, which change what stays so that something can go. `machines` makes the machine
smaller too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from attrs import define, field

from servecheck.trace.fewer import fewer_actions
from servecheck.trace.lasso import WATCHED
from servecheck.trace.simpler import TOGETHER, Actions, Size, simpler_actions, size_of
from servespec.actions import Action, Complete, Output, Submit
from servespec.errors import ActionDisabled
from servespec.machine import Machine, acceptable
from servespec.plan import Plan, Planned, State
from servespec.properties import Fall, step_of

StillFails = Callable[[Sequence[Action]], bool]

SHORT = 6
"""Actions in a row that are left out together, once the chunks are that short."""
FEW = 16
"""Actions of a run of which all pairs are tried."""


def fall_in(machine: Machine, property_id: str, actions: Iterable[Action]) -> str | None:
    """What is wrong where a property first falls on a run; None if it does not, or the run is not
    legal up to there."""
    asked, state = WATCHED[property_id], machine.initial()
    monitor = asked.start(machine, state)
    for action in actions:
        try:
            moved = machine.apply(state, action)
        except ActionDisabled:
            return None
        monitor, outcome = monitor.after(step_of(machine, state, action, moved))
        if isinstance(outcome, Fall):
            return outcome.what
        state = moved.state
    return None


def falls(machine: Machine, property_id: str) -> StillFails:
    """The question whether a property falls on a run of this machine."""
    return lambda actions: fall_in(machine, property_id, actions) is not None


# --- mending -------------------------------------------------------------------------------


def mend(machine: Machine, actions: Iterable[Action]) -> Actions:
    """The same run as far as the machine offers it: what is disabled is left out, what a step
    brings is adapted to its plan."""
    state, kept = machine.initial(), list[Action]()
    for action in actions:
        mended = adapted(machine, state, action) if isinstance(action, Complete) else action
        try:
            state = machine.apply(state, mended).state
        except ActionDisabled:
            continue
        kept.append(mended)
    return tuple(kept)


def adapted(machine: Machine, state: State, action: Complete) -> Complete:
    """The outcome of the oldest plan in flight that is closest to `action`."""
    plan = state.in_flight[0] if state.in_flight else Plan()
    said = {output.id: output for output in action.outputs}
    most = machine.config.num_speculative_tokens
    return Complete(
        tuple(
            _output(entry, said.get(entry.id, Output(entry.id)), most)
            for entry in plan.entries
            if entry.yields and not entry.cancelled
        )
    )


def _output(entry: Planned, said: Output, most: int) -> Output:
    """Of the accepted drafts those that the plan has, then one token."""
    tokens = said.tokens or (0,)
    accepted = 0
    limit = min(acceptable(entry), len(tokens) - 1)
    while accepted < limit and tokens[accepted] == entry.drafts[accepted]:
        accepted += 1
    return Output(entry.id, tokens[: accepted + 1], said.drafts[:most])


# --- smaller -------------------------------------------------------------------------------


@define
class _Shrinker:
    machine: Machine
    still_fails: StillFails
    best: Actions
    size: Size
    tried: set[Actions] = field(factory=set)
    """What does not fail, or is not smaller than the best."""

    def keeps(self, candidate: Iterable[Action]) -> bool:
        """Go on from a candidate, if it still fails and is smaller."""
        given = tuple(candidate)
        if given in self.tried:
            return False
        mended = mend(self.machine, given)
        size = size_of(mended)
        if size < self.size and mended not in self.tried and self.still_fails(mended):
            self.best, self.size = mended, size
            return True
        self.tried |= {given, mended}
        return False

    def run(self) -> None:
        """Shrink until nothing gets smaller."""
        self.cut_tail()
        self.cut_head()
        size = len(self.best)
        while size > 1:
            size //= 2
            self.drop(size)
        before = None
        while before != self.size:
            before = self.size
            self.simplify()
            self.come_earlier()
            for count in range(SHORT, 0, -1):
                self.drop(count)
            self.drop_two()
            self.find_fewer()

    def cut_tail(self) -> None:
        """What follows the failure goes: it is where the shortest failing prefix ends."""
        whole = self.best
        if not whole or not self.still_fails(whole[:-1]):
            return
        fine, bad = 0, len(whole) - 1
        while bad - fine > 1:
            middle = (fine + bad) // 2
            fine, bad = (fine, middle) if self.still_fails(whole[:middle]) else (middle, bad)
        self.keeps(whole[:bad])

    def cut_head(self) -> None:
        """Begin later: the shortest of the last 8, 16, 32, … actions that fail by themselves."""
        size = 8
        while size < len(self.best) and not self.keeps(self.best[-size:]):
            size *= 2

    def drop(self, count: int) -> None:
        """Leave out so many actions in a row, wherever that can be, from the back."""
        end = len(self.best)
        while end > 0:
            start = max(end - count, 0)
            if self.keeps(self.best[:start] + self.best[end:]):
                end = min(start, len(self.best))
            else:
                end -= count if count > 2 else 1

    def drop_two(self) -> None:
        """Leave out two actions that stand apart, once there are few."""
        pairs = combinations(range(len(self.best)), 2) if len(self.best) <= FEW else ()
        for i, j in pairs:
            rest = (action for at, action in enumerate(self.best) if at not in (i, j))
            if self.keeps(rest):
                return

    def find_fewer(self) -> None:
        """Change what stays, so that something can go."""
        while any(self.keeps(candidate) for candidate in fewer_actions(self.best)):
            pass

    def come_earlier(self) -> None:
        """Let requests come as soon as the one before them."""
        first = 0
        for at in range(len(self.best)):
            if at < len(self.best) and isinstance(self.best[at], Submit):
                best = self.best
                self.keeps((*best[:first], best[at], *best[first:at], *best[at + 1 :]))
                first += 1

    def simplify(self) -> None:
        """Make payloads simpler, first all together, then one by one."""
        for change in TOGETHER:
            while self.keeps(change(self.best)):
                pass
        at = 0
        while at < len(self.best):
            here = (
                self.keeps((*self.best[:at], simpler, *self.best[at + 1 :]))
                for simpler in simpler_actions(self.best[at])
            )
            at += not any(here)


def shrink(machine: Machine, actions: Sequence[Action], still_fails: StillFails) -> Actions:
    """The smallest run found that still fails; the actions as they are if, mended, they do not."""
    start = mend(machine, actions)
    if not still_fails(start):
        return tuple(actions)
    shrinker = _Shrinker(machine, still_fails, start, size_of(start))
    shrinker.run()
    return shrinker.best
