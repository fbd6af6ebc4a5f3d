"""Makes a failing run small, and keeps it legal.

Theory of operation. Dropping an action changes all that follows: steps carry other requests,
outputs no longer match their plans, a `Schedule` meets a plan in flight. So every candidate is
first *mended*: the machine walks along it, drops what a state does not offer, and adapts each
`Complete` to the plan that it completes. What is still legal and still fails, and is smaller,
becomes the run to go on from.

    actions ──drop a chunk, simplify a payload──▶ mend ──▶ smaller? ──▶ still_fails? ──▶ keep

Smaller is an order on (actions, tokens, values, names), so shrinking ends. Chunks go from half of
the run down to one action (delta debugging: Zeller and Hildebrandt, 2002), from the back, since
the end of a run is what fails. `shrink_world` also makes the machine smaller, size by size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, evolve

from servecheck.trace.lasso import WATCHED
from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    Output,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.chain import PUBLIC, Tokens
from servespec.config import Config
from servespec.errors import ActionDisabled, ConfigError
from servespec.machine import Machine, acceptable
from servespec.plan import Plan, Planned, State
from servespec.properties import Fall, step_of

StillFails = Callable[[Sequence[Action]], bool]
Actions = tuple[Action, ...]


def falls(machine: Machine, property_id: str) -> StillFails:
    """The question whether a property falls on a run of this machine."""
    asked = WATCHED[property_id]

    def fails(actions: Sequence[Action]) -> bool:
        state = machine.initial()
        monitor = asked.start(machine, state)
        for action in actions:
            try:
                moved = machine.apply(state, action)
            except ActionDisabled:
                return False
            monitor, outcome = monitor.after(step_of(machine, state, action, moved))
            if isinstance(outcome, Fall):
                return True
            state = moved.state
        return False

    return fails


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

Size = tuple[int, int, int, int]


def size_of(actions: Sequence[Action]) -> Size:
    """Actions, tokens in them, how large and how special their values are, how odd the names."""
    tokens = values = names = 0
    submits = 0
    for action in actions:
        match action:
            case Submit(id, prompt, max_tokens, namespace, priority, stop, with_last):
                tokens += len(prompt) + max_tokens + len(stop)
                values += sum(map(abs, (*prompt, *stop, priority))) + with_last
                values += sum(part is not None for part in (namespace.adapter, namespace.salt))
                names += id != f"r{submits}"
                submits += 1
            case Complete(outputs):
                tokens += sum(len(o.tokens) + len(o.drafts) for o in outputs)
                values += sum(abs(t) for o in outputs for t in (*o.tokens, *o.drafts))
            case ResetCache(preempt_running):
                values += preempt_running
    return len(actions), tokens, values, names


@define
class _Shrinker:
    machine: Machine
    still_fails: StillFails
    best: Actions
    size: Size

    def keeps(self, candidate: Iterable[Action]) -> bool:
        """Go on from a candidate, if it still fails and is smaller."""
        mended = mend(self.machine, candidate)
        size = size_of(mended)
        if size >= self.size or not self.still_fails(mended):
            return False
        self.best, self.size = mended, size
        return True

    def run(self) -> None:
        """Shrink until nothing gets smaller."""
        self.cut_tail()
        size = len(self.best)
        while size > 1:
            size //= 2
            self.drop(size)
        before = None
        while before != self.size:
            before = self.size
            self.simplify()
            self.drop(2)
            self.drop(1)

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

    def drop(self, count: int) -> None:
        """Leave out so many actions in a row, wherever that can be, from the back."""
        end = len(self.best)
        while end > 0:
            start = max(end - count, 0)
            if self.keeps(self.best[:start] + self.best[end:]):
                end = min(start, len(self.best))
            else:
                end -= max(count // 2, 1)

    def simplify(self) -> None:
        """Make payloads simpler, first all together, then one by one."""
        for change in TOGETHER:
            while self.keeps(change(self.best)):
                pass
        for at in range(len(self.best)):
            again = True
            while again and at < len(self.best):
                again = any(
                    self.keeps((*self.best[:at], simpler, *self.best[at + 1 :]))
                    for simpler in simpler_actions(self.best[at])
                )


def shrink(machine: Machine, actions: Sequence[Action], still_fails: StillFails) -> Actions:
    """The smallest run found that still fails; `actions`, mended, if they do not fail."""
    start = mend(machine, actions)
    if not still_fails(start):
        return start
    shrinker = _Shrinker(machine, still_fails, start, size_of(start))
    shrinker.run()
    return shrinker.best
