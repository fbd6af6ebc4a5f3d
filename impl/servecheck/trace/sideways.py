"""Leaves a local minimum sideways: other runs that fail and are no longer.

Theory of operation. Some failures hang on a balance: a pool must be just full, a budget just spent.
Then no change makes the run smaller unless another one restores the balance: a prompt is a block
shorter *and* the pool has a block less. So one to three changes are drawn at random, of the run and
of the machine, larger or smaller; what fails and has no more actions is gone on from, until one has
fewer. Chance comes from a fixed seed, so the result is a function of the run.

    run, machine ──1 to 3 changes──▶ mend ──▶ no longer? ──▶ fails? ──▶ go on from there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TypeVar

from attrs import evolve, frozen

from servecheck.trace.fewer import apart, brought_along, merged, passes, without
from servecheck.trace.machines import Fails
from servecheck.trace.shrink import mend
from servecheck.trace.simpler import Actions
from servespec.actions import Complete, Output, Submit
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.policy import Policy

T = TypeVar("T")

TRIES = 800
"""Runs that are tried before a run is held to be as short as it gets."""
LIMITS = (
    "num_blocks",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "num_speculative_tokens",
    "long_prefill_token_threshold",
)
"""Sizes that a failure may hang on, one more or less."""
STEPS = (-1, 1, -2, 2)


@frozen
class Chance:
    """Drawn from a fixed seed."""

    random: Random

    def below(self, n: int) -> int:
        # Not randrange, whose algorithm may change: random() is fixed for a seed.
        return int(self.random.random() * n)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]


Policies = Callable[[Policy], Sequence[Policy]]
Change = Callable[[Chance, Actions], Actions]


def sideways(
    machine: Machine, actions: Actions, fails: Fails, policies: Policies = lambda policy: ()
) -> tuple[Machine, Actions] | None:
    """A machine and a run that fails on it with fewer actions, if one is found. `policies` are
    those that are next to a policy."""
    chance, tried = Chance(Random(0)), set[tuple[Machine, Actions]]()
    here, run = machine, actions
    for _ in range(TRIES):
        other, changed = here, run
        for _ in range(1 + chance.below(3)):
            if chance.below(2):
                other = another_machine(chance, other, policies)
            else:
                changed = chance.pick(CHANGES)(chance, changed)
        candidate = other, mend(other, changed)
        if candidate in tried or len(candidate[1]) > len(actions):
            continue
        tried.add(candidate)
        if fails(other)(candidate[1]):
            here, run = candidate
            if len(run) < len(actions):
                return here, run
    return None


def another_machine(chance: Chance, machine: Machine, policies: Policies) -> Machine:
    """The same machine with one limit moved by one or two, or with a policy next to its own."""
    name = chance.pick((*LIMITS, ""))
    others = () if name else policies(machine.policy)
    with suppress(ConfigError):
        if others:
            return Machine(machine.config, chance.pick(others))
        if name:
            value: int = getattr(machine.config, name) + chance.pick(STEPS)
            return Machine(evolve(machine.config, **{name: value}), machine.policy)
    return machine


# --- the run -------------------------------------------------------------------------------


def _submit(chance: Chance, actions: Actions, change: Callable[[Submit], Submit]) -> Actions:
    """One request, changed."""
    places = [at for at, action in enumerate(actions) if isinstance(action, Submit)]
    if not places:
        return actions
    at = chance.pick(places)
    submit = actions[at]
    new = change(submit) if isinstance(submit, Submit) else submit
    return (*actions[:at], new, *actions[at + 1 :])


def another_length(chance: Chance, actions: Actions) -> Actions:
    """A prompt some tokens longer or shorter."""
    by = chance.pick((-1, 1, -2, 2, -3, 3, -4, 4))

    def longer(submit: Submit) -> Submit:
        prompt = submit.prompt + submit.prompt[-1:] * by if by > 0 else submit.prompt[:by]
        return evolve(submit, prompt=prompt or submit.prompt)

    return _submit(chance, actions, longer)


def another_end(chance: Chance, actions: Actions) -> Actions:
    """A request that wants some tokens more or less."""
    by = chance.pick(STEPS)
    return _submit(chance, actions, lambda s: evolve(s, max_tokens=max(s.max_tokens + by, 1)))


def another_priority(chance: Chance, actions: Actions) -> Actions:
    priority = chance.below(2)
    return _submit(chance, actions, lambda s: evolve(s, priority=priority))


def another_place(chance: Chance, actions: Actions) -> Actions:
    """One action comes earlier or later."""
    at, to = chance.below(len(actions)), chance.below(len(actions))
    rest = (*actions[:at], *actions[at + 1 :])
    return (*rest[:to], actions[at], *rest[to:])


def leave_out(chance: Chance, actions: Actions) -> Actions:
    """Not this action."""
    at = chance.below(len(actions))
    return (*actions[:at], *actions[at + 1 :])


def a_pass_less(chance: Chance, actions: Actions) -> Actions:
    """Not this pass; perhaps what it brought comes with the prompts."""
    ran = passes(actions)
    less = chance.pick((without, brought_along, brought_along))
    return less(actions, (chance.pick(ran),)) if ran else actions


def a_request_less(chance: Chance, actions: Actions) -> Actions:
    """Two requests become one."""
    return chance.pick((actions, *merged(actions)))


def texts_apart(chance: Chance, actions: Actions) -> Actions:
    return apart(actions)


def other_drafts(chance: Chance, actions: Actions) -> Actions:
    """One outcome proposes what was sampled last, or nothing."""
    places = [at for at, action in enumerate(actions) if isinstance(action, Complete)]
    if not places:
        return actions
    at, many = chance.pick(places), chance.below(4)
    complete = actions[at]
    if not isinstance(complete, Complete):
        return actions
    said = (Output(o.id, o.tokens, o.tokens[-1:] * many) for o in complete.outputs)
    return (*actions[:at], Complete(tuple(said)), *actions[at + 1 :])


CHANGES: tuple[Change, ...] = (
    another_length,
    another_length,
    another_end,
    another_priority,
    another_place,
    leave_out,
    a_pass_less,
    a_pass_less,
    a_request_less,
    texts_apart,
    other_drafts,
)
