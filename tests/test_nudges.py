"""Every property answers as it did, in the same words, on steps that are off by little; and a
monitor answers the same, whatever blocks, requests, tokens and namespaces are called."""

from __future__ import annotations

import json
from functools import cache

import pytest

from servespec.chain import Namespace, Token, Tokens
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import PROPERTIES, Kind, Renamable, Renaming, Step
from servespec.properties.history import _Worker
from servespec.theory.renaming import Renaming as Names
from tests.nudges import PINNED, TOGETHER, Said, groups, nudges, passes, said, together, varied

NAMES = tuple(PROPERTIES)
ASKED = nudges() + passes()
GROUPS = groups()
"""Made as this file is read: what a property says of a step must not depend on how it was made."""


@cache
def pinned() -> dict[str, Said]:
    found: dict[str, Said] = json.loads(PINNED.read_text(encoding="utf-8"))
    return {name: told for name, told in found.items() if name != TOGETHER}


@pytest.mark.parametrize("name", NAMES)
def test_of_steps_that_are_off_by_little_it_says_what_it_said(name: str) -> None:
    now = said(name)
    assert now == pinned()[name], "if this is meant: python -m tests.nudges"


@pytest.mark.parametrize("name", GROUPS)
def test_of_an_action_all_of_them_say_what_they_said(name: str) -> None:
    assert len(GROUPS[name]) > 30
    told = json.loads(PINNED.read_text(encoding="utf-8"))[TOGETHER]
    assert together(name) == told[name], "if this is meant: python -m tests.nudges"


def test_most_nudges_make_some_property_fall() -> None:
    told = ["".join(pinned()[name]["nudged"]) for name in NAMES]
    fell = sum("F" in letters for letters in zip(*told, strict=True))
    assert set(pinned()) == set(NAMES)
    assert {len(letters) for letters in told} == {len(nudges())}
    assert fell > len(nudges()) / 2


# --- other names ---------------------------------------------------------------------------

MONITORS = [name for name, asked in PROPERTIES.items() if asked.kind is Kind.M]


def other_names(machine: Machine, state: State) -> tuple[Names, Renaming]:
    """Blocks are called the other way round, tokens one higher, and requests by another letter: as
    a map on states, and as a search tells it to a monitor. Block 0 keeps its name where policy
    hands it to nobody."""
    first, count = machine.policy.first_block, machine.config.num_blocks
    blocks = {b: b for b in range(first)}
    blocks |= {b: count - 1 - (b - first) for b in range(first, count)}
    letters = {"a": "b", "b": "c", "c": "d", "d": "e", "e": "a"}

    def higher(_: Namespace, token: Token) -> Token:
        return token + 1

    tokens = {token: token + 1 for token in range(4)}
    ids = {r.id: letters[r.id] for r in state.live}
    return Names(blocks, higher, letters), Renaming(blocks, ids, tokens, {})


@pytest.mark.parametrize("name", MONITORS)
@pytest.mark.parametrize("run", range(0, len(varied()), 8))
def test_a_monitor_goes_on_under_other_names(name: str, run: int) -> None:
    """At each state of a run it is renamed, and asked of the renamed rest of three steps."""
    steps = varied()[run]
    monitor = PROPERTIES[name].start(steps[0].machine, steps[0].before)
    for at, step in enumerate(steps):
        names, told = other_names(step.machine, step.before)
        other, mine = renamed(monitor, told), monitor
        for later in steps[at : at + 3]:
            mine, here = mine.after(later)
            other, there = other.after(under(names, later))
            assert here == there
        monitor = monitor.after(step)[0]


def renamed(monitor: object, names: Renaming) -> Renamable:
    assert hasattr(monitor, "renamed")
    found: Renamable = monitor.renamed(names)
    return found


def under(names: Names, step: Step) -> Step:
    return Step(
        step.machine,
        names.state(step.before),
        names.action(step.action, step.before),
        names.state(step.after),
        names.events(step.events, step.before),
    )


def test_a_worker_keeps_all_that_it_was_told_under_other_names() -> None:
    """Of an entry in flight everything that has a name gets another one, and nothing else; who has
    left has none any more."""
    step = next(
        s
        for run in varied()
        for s in run
        if s.after.in_flight and any(e.drafts for e in s.after.in_flight[0].entries)
    )
    state = step.after
    worker = PROPERTIES["PLAN-1"].start(step.machine, state)
    names, told = other_names(step.machine, state)
    spaces = {r.namespace: Namespace(adapter="x") for r in state.live}
    told = Renaming(told.blocks, told.ids, told.tokens, spaces)
    other = renamed(worker, told)
    assert isinstance(worker, _Worker)
    assert isinstance(other, _Worker)
    same = renamed(worker, Renaming(told.blocks, told.ids, told.tokens, {}))
    assert isinstance(same, _Worker)
    (mine,), (theirs,), (there,) = worker.plans, other.plans, same.plans
    for e, n, s in zip(mine, theirs, there, strict=True):
        assert n.id == names.id(e.id)
        assert n.namespace == Namespace(adapter="x")
        assert s.namespace == e.namespace
        assert n.tokens == plus_one(e.tokens)
        assert n.drafts == plus_one(e.drafts)
        assert n.table == names.table(e.table)
        assert (n.start, n.new_blocks, n.yields, n.admitted) == (
            e.start,
            e.new_blocks,
            e.yields,
            e.admitted,
        )
    left = renamed(worker, Renaming(told.blocks, {}, {}, {})) if not worker.rows else None
    assert left is None
    kept = Renaming(told.blocks, told.ids, {}, {})
    assert kept.text((1, 2)) == (1, 2)
    assert Renaming({}, {}, {1: 5}, {}).text((1, 2)) == (5, 2)


def plus_one(text: Tokens) -> Tokens:
    return tuple(token + 1 if token >= 0 else token for token in text)
