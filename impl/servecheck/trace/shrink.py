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
from itertools import combinations

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

FEW = 16
"""Actions of a run of which all pairs are tried."""


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
            self.drop_two()

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
                end -= count if count > 2 else 1

    def drop_two(self) -> None:
        """Leave out two actions that stand apart, once there are few."""
        pairs = combinations(range(len(self.best)), 2) if len(self.best) <= FEW else ()
        for i, j in pairs:
            rest = (action for at, action in enumerate(self.best) if at not in (i, j))
            if self.keeps(rest):
                return

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


# --- simpler payloads ----------------------------------------------------------------------


def simpler_actions(action: Action) -> Iterator[Action]:
    """Actions of the same kind that say less, the boldest first."""
    match action:
        case Submit():
            yield from simpler_submits(action)
        case Complete(outputs):
            for at, output in enumerate(outputs):
                for simpler in simpler_outputs(output):
                    yield Complete((*outputs[:at], simpler, *outputs[at + 1 :]))
        case ResetCache(True):
            yield ResetCache(False)


def simpler_submits(submit: Submit) -> Iterator[Submit]:
    if submit.namespace != PUBLIC:
        yield evolve(submit, namespace=PUBLIC)
    if submit.stop:
        yield evolve(submit, stop=())
    if submit.with_last:
        yield evolve(submit, with_last=False)
    for priority in smaller(submit.priority, 0):
        yield evolve(submit, priority=priority)
    for max_tokens in smaller(submit.max_tokens, 1):
        yield evolve(submit, max_tokens=max_tokens)
    for prompt in simpler_tokens(submit.prompt):
        if prompt:
            yield evolve(submit, prompt=prompt)


def simpler_outputs(output: Output) -> Iterator[Output]:
    for tokens in simpler_tokens(output.tokens):
        yield evolve(output, tokens=tokens)
    for drafts in simpler_tokens(output.drafts):
        yield evolve(output, drafts=drafts)


def smaller(value: float, least: int) -> tuple[int, ...]:
    """Numbers nearer to the least, beginning with it; of a fraction the least alone."""
    if value == least:
        return ()
    if not isinstance(value, int):
        return (least,)
    near = value - 1 if value > least else value + 1
    return tuple(dict.fromkeys((least, near + (least - near) // 2, near)))


def simpler_tokens(tokens: Tokens) -> Iterator[Tokens]:
    """Fewer of them, or more of them 0."""
    count = len(tokens)
    while count:
        for start in range(0, len(tokens), count):
            yield tokens[:start] + tokens[start + count :]
        count //= 2
    if any(tokens):
        yield (0,) * len(tokens)
        for at, token in enumerate(tokens):
            if token:
                yield (*tokens[:at], 0, *tokens[at + 1 :])


def each_submit(change: Callable[[Submit], Submit]) -> Callable[[Actions], Actions]:
    """The same change to every request."""
    return lambda actions: tuple(change(a) if isinstance(a, Submit) else a for a in actions)


def renumbered(actions: Actions) -> Actions:
    """Tokens by the order in which they first occur."""
    numbers: dict[int, int] = {}

    def new(tokens: Tokens) -> Tokens:
        return tuple(numbers.setdefault(token, len(numbers)) for token in tokens)

    found = list[Action]()
    for action in actions:
        match action:
            case Submit():
                action = evolve(action, prompt=new(action.prompt), stop=new(action.stop))
            case Complete(outputs):
                action = Complete(tuple(Output(o.id, new(o.tokens), new(o.drafts)) for o in outputs))
        found.append(action)
    return tuple(found)


def renamed(actions: Actions) -> Actions:
    """Requests by the order in which they come: r0, r1, …"""
    names: dict[str, str] = {}
    came = 0
    found = list[Action]()
    for action in actions:
        match action:
            case Submit():
                names[action.id] = f"r{came}"
                came += 1
                action = evolve(action, id=names[action.id])
            case Complete(outputs):
                action = Complete(tuple(evolve(o, id=names.get(o.id, o.id)) for o in outputs))
            case Abort(id):
                action = Abort(names.get(id, id))
        found.append(action)
    return tuple(found)


TOGETHER: tuple[Callable[[Actions], Actions], ...] = (
    renamed,
    renumbered,
    each_submit(lambda submit: evolve(submit, namespace=PUBLIC, stop=())),
    each_submit(lambda submit: evolve(submit, priority=0)),
    each_submit(lambda submit: evolve(submit, prompt=submit.prompt[1:] or submit.prompt)),
    each_submit(lambda submit: evolve(submit, prompt=submit.prompt[:-1] or submit.prompt)),
    each_submit(lambda submit: evolve(submit, max_tokens=max(submit.max_tokens - 1, 1))),
)
"""Changes that help only if all requests undergo them."""


# --- the machine too -----------------------------------------------------------------------


def shrink_world(
    machine: Machine, actions: Sequence[Action], fails: Callable[[Machine], StillFails]
) -> tuple[Machine, Actions]:
    """Shrink the run, then the sizes of the machine as far as the run goes on failing, and again."""
    best = shrink(machine, actions, fails(machine))
    while True:
        for smaller_machine in smaller_machines(machine):
            still_fails = fails(smaller_machine)
            for change in (tuple, *TOGETHER):
                mended = mend(smaller_machine, change(best))
                if still_fails(mended):
                    break
            else:
                continue
            machine, best = smaller_machine, shrink(smaller_machine, mended, still_fails)
            break
        else:
            return machine, best


LEAST = {
    "num_blocks": 1,
    "block_size": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "long_prefill_token_threshold": 0,
    "watermark": 0,
    "num_speculative_tokens": 0,
    "num_lookahead_tokens": 0,
}


def smaller_machines(machine: Machine) -> Iterator[Machine]:
    """The same machine with one size smaller, or with two sizes smaller by one, as far as sizes and
    choices then still go together."""
    sizes: dict[str, float] = {name: getattr(machine.config, name) for name in LEAST}
    one = [{name: value} for name in LEAST for value in smaller(sizes[name], LEAST[name])]
    two = [
        {name: smaller(sizes[name], LEAST[name])[-1] for name in pair}
        for pair in combinations(LEAST, 2)
        if all(sizes[name] > LEAST[name] for name in pair)
    ]
    for changed in one + two:
        try:
            yield Machine(evolve(machine.config, **changed), machine.policy)
        except ConfigError:
            continue
