"""What one tenant sees of another, and the attack on a shared prefix (ISO-1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servecheck.fuzz.wander import Wanderer
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.view.attack import ACTIONS as ATTACK
from servecheck.view.attack import MACHINE as ATTACKED
from servecheck.view.attack import STEP
from servecheck.view.attack import main as make
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.chain import Namespace, extend_keys, link
from servespec.config import Config
from servespec.errors import ActionDisabled, ConfigError
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine
from servespec.policy import PROFILES, VLLM_0_33, Policy
from servespec.theory.attack import attacked
from servespec.theory.isolation import disguised, seen_by, tells, view
from tests.walks import walked

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "traces" / "theory"
ANN, BOB = Namespace(salt="ann"), Namespace(salt="bob")


@given(st.data(), st.sampled_from([17, 1_000]))
@settings(max_examples=100)
def test_what_one_tenant_writes_no_other_can_tell(data: st.DataObject, shift: int) -> None:
    """Random walks in random worlds; each tenant that was there is disguised in turn."""
    walk = walked(data)
    owners: dict[str, set[Namespace]] = {}
    for action in walk.actions:
        if isinstance(action, Submit):
            owners.setdefault(action.id, set()).add(action.namespace)
    for tenant in sorted({n for of in owners.values() for n in of}, key=repr):
        theirs = frozenset(id for id, of in owners.items() if tenant in of)
        if all(owners[id] == {tenant} for id in theirs):
            assert tells(walk.machine, walk.actions, theirs, lambda t: t + shift) is None


def test_a_disguise_of_half_a_tenant_is_told_on_some_walks() -> None:
    """The comparison has something to see: on random walks, other tokens for one request of several
    in a namespace often show."""
    told = tenants = 0
    for seed in range(60):
        walk = Wanderer(seed, (), policy=VLLM_0_33).go(40)
        submits = [a for a in walk.actions if isinstance(a, Submit)]
        tenants += len({s.namespace for s in submits}) > 1
        ids = frozenset(s.id for s in submits[:1])
        told += tells(walk.machine, walk.actions, ids, lambda t: t + 17) is not None
    assert told > 5
    assert tenants > 5


def served(machine: Machine, *submits: Submit) -> list[Action]:
    """One after the other, each to its end after one token."""
    state, actions = machine.initial(), list[Action]()
    for submit in submits:
        for action in (submit, Schedule()):
            state = machine.apply(state, action).state
            actions.append(action)
        done = Complete((Output(submit.id, (9,)),))
        state = machine.apply(state, done).state
        actions.append(done)
    return actions


ROOMY = Machine(Config(9, 2, 8, 8, 2), VLLM_0_33)


def hits(events: Iterator[Event]) -> list[int]:
    return [e.hit_tokens for e in events if isinstance(e, Admitted)]


def test_without_namespaces_the_tokens_of_another_show() -> None:
    """Bob asks what Ann will ask: she hits four tokens. If he asks something else, she hits none.
    With a salt each, she hits none whatever he asks; with the same salt she hits again."""
    bob, ann = Submit("bob", (1, 2, 3, 4, 5), 1), Submit("ann", (1, 2, 3, 4, 6), 1)
    theirs = frozenset({"bob"})
    for his, hers, tokens in ((BOB, ANN, 0), (ANN, ANN, 4), (Namespace(), Namespace(), 4)):
        actions = served(ROOMY, evolve(bob, namespace=his), evolve(ann, namespace=hers))
        seen = view(ROOMY, actions, frozenset({"ann"}))
        assert hits(e for events in seen for e in events) == [tokens]
        other = served(
            ROOMY, Submit("bob", (11, 12, 13, 14, 15), 1, his), evolve(ann, namespace=hers)
        )
        seen = view(ROOMY, other, frozenset({"ann"}))
        assert hits(e for events in seen for e in events) == [0]
        told = tells(ROOMY, actions, theirs, lambda t: t + 10)
        assert (told is None) is (tokens == 0)
        assert told is None or "hit_tokens=4" in told


def test_a_tenant_sees_all_that_happens_to_its_requests_and_nothing_else() -> None:
    """One event of every kind for Ann, and one for Bob; those of the cache are nobody's."""
    key = link(Namespace(), None, (1, 2))
    cache = (BlockStored(1, key, None), BlockRemoved(1, key), CacheCleared())

    def of(id: str) -> tuple[Event, ...]:
        return (
            Submitted(id),
            Admitted(id, 2, (1, 2)),
            Scheduled(id, 1, 0, (3,)),
            Skipped(id, Reason.NO_BLOCKS),
            Preempted(id),
            Delivered(id, 0, (9,)),
            Finished(id, Reason.LENGTH),
            Refused(id, Reason.NO_BLOCKS),
        )

    both = tuple(event for pair in zip(of("ann"), of("bob"), strict=True) for event in pair)
    assert {type(event) for event in (*both, *cache)} == set(get_args(Event))
    assert seen_by(frozenset({"ann"}), both + cache) == of("ann")


def test_the_adapter_is_a_namespace_too() -> None:
    bob = Submit("bob", (1, 2, 3), 1, Namespace(adapter="x"))
    ann = Submit("ann", (1, 2, 3), 1, Namespace(adapter="y"))
    assert tells(ROOMY, served(ROOMY, bob, ann), frozenset({"bob"}), lambda t: t + 10) is None


def test_what_cannot_happen_in_the_other_run_tells() -> None:
    """Without namespaces a disguise can change what is enabled: the drafts of another request."""
    machine = Machine(Config(9, 2, 8, 4, 2), VLLM_0_33)
    actions: list[Action] = [
        *served(machine, Submit("bob", (1, 2, 3), 1)),
        Submit("ann", (1, 2, 3, 4, 5, 6), 1),
        Schedule(),
        Complete((Output("ann", (9,)),)),
    ]
    told = tells(machine, actions, frozenset({"bob"}), lambda t: t + 10)
    assert told is not None
    assert told.startswith("what happened cannot happen: Complete: request 'ann' has 1 tokens")


def test_a_disguise_changes_all_that_is_theirs_and_nothing_else() -> None:
    actions = (
        Submit("bob", (1,), 2, stop=(3,)),
        Submit("ann", (1,), 2, stop=(3,)),
        Complete((Output("bob", (1,), (2,)), Output("ann", (1,), (2,)))),
    )
    assert disguised(actions, frozenset({"bob"}), lambda t: t + 10) == (
        Submit("bob", (11,), 2, stop=(13,)),
        Submit("ann", (1,), 2, stop=(3,)),
        Complete((Output("bob", (11,), (12,)), Output("ann", (1,), (2,)))),
    )


def test_a_machine_refuses_what_a_wrong_disguise_asks() -> None:
    with pytest.raises(ActionDisabled):
        view(ROOMY, [Schedule(), Schedule()], frozenset())


def test_a_salt_that_is_forgotten_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys without a namespace: Ann hits what Bob left, whatever salts they have."""
    monkeypatch.setattr(
        "servespec.request.extend_keys",
        lambda known, namespace, text, size: extend_keys(known, Namespace(), text, size),
    )
    bob, ann = Submit("bob", (1, 2, 3), 1, BOB), Submit("ann", (1, 2, 3), 1, ANN)
    actions = [*served(ROOMY, bob), ann, Schedule()]
    told = tells(ROOMY, actions, frozenset({"bob"}), lambda t: t + 10)
    assert told is not None
    assert "hit_tokens=2" in told


# --- what isolation does not hide: load -------------------------------------------------------


def test_load_shows_through_namespaces() -> None:
    """What ISO-1 does not promise. Eight blocks of two tokens. Ann's prompt of five tokens leaves
    two blocks in the cache. Bob, in a namespace of his own, sends a prompt of 3 tokens or one of
    15; then Ann asks again and hits 4 tokens, or none, as Bob's eight blocks have evicted hers."""
    machine = Machine(Config(9, 2, 16, 16, 2), VLLM_0_33)
    told = {}
    for load in (3, 15):
        bob = Submit("bob", tuple(range(load)), 1, BOB)
        first, again = (Submit(id, (1, 2, 3, 4, 5), 1, ANN) for id in ("first", "again"))
        actions = served(machine, first, bob, again)
        seen = view(machine, actions, frozenset({"first", "again"}))
        state, evicted = machine.initial(), 0
        for action in actions[:6]:
            moved = machine.apply(state, action)
            state = moved.state
            evicted += sum(isinstance(e, BlockRemoved) for e in moved.events)
        told[load] = (hits(e for events in seen for e in events), evicted)
        assert tells(machine, actions, frozenset({"bob"}), lambda t: t + 10) is None
    assert told == {3: ([0, 4], 0), 15: ([0, 0], 2)}


# --- the attack -------------------------------------------------------------------------------


SECRET = (2, 1, 1, 2, 2, 2)


def target(policy: Policy = VLLM_0_33) -> Machine:
    return Machine(Config(65, 2, 16, 32, 4), policy)


@pytest.mark.parametrize("name", ["VLLM_0_33", "MINIATURE"])
def test_a_prompt_is_read_out_of_hit_counts(name: str) -> None:
    """Three blocks of two tokens over two tokens: at most 3 · 4 guesses and 4 that find nothing
    more, where guessing the whole prompt takes up to 4³."""
    attack = attacked(target(PROFILES[name]), SECRET, alphabet=(1, 2))
    assert attack.read == SECRET
    assert attack.guesses <= 4 * 4


@pytest.mark.parametrize("secret", [(1, 1), (2, 2, 2, 2), (1, 2, 2, 1), (3, 3, 1, 2, 2, 3)])
def test_any_prompt_is_read(secret: tuple[int, ...]) -> None:
    assert attacked(target(), secret, alphabet=(1, 2, 3)).read == secret


def test_one_token_is_guessed_at_once() -> None:
    """Blocks of two, and an alphabet of one token: three guesses are right, the fourth finds
    nothing more. The victim asks for one token."""
    attack = attacked(target(), (1,) * 6, alphabet=(1,))
    assert (attack.read, attack.guesses) == ((1,) * 6, 4)
    assert attack.actions[0] == Submit("victim", (1,) * 6, 1)
    asked = [a for a in attack.actions if isinstance(a, Submit)]
    assert [(a.id, len(a.prompt), a.max_tokens) for a in asked[1:]] == [
        ("guess 1", 3, 1),
        ("guess 2", 5, 1),
        ("guess 3", 7, 1),
        ("guess 4", 9, 1),
    ]


def test_what_fills_no_block_is_not_read() -> None:
    assert attacked(target(), (*SECRET, 1), alphabet=(1, 2)).read == SECRET


def test_with_salts_nothing_is_read() -> None:
    """Every guess of the first block misses."""
    attack = attacked(target(), SECRET, (1, 2), victim=BOB, attacker=ANN)
    assert (attack.read, attack.guesses) == ((), 4)
    shared = attacked(target(), SECRET, (1, 2), victim=ANN, attacker=ANN)
    assert shared.read == SECRET


def test_blocks_of_one_token_would_mislead_the_attacker() -> None:
    with pytest.raises(ConfigError, match="block_size: is 1"):
        attacked(Machine(Config(9, 1, 8, 8, 2), VLLM_0_33), (1,), (1, 2))


def test_the_trace_of_the_attack_is_the_attack() -> None:
    """The committed trace; the picture of it is made by `servecheck render`, see tests of view."""
    trace = read_trace(TRACES / "attack.jsonl")
    assert (trace.machine, trace.actions) == (ATTACKED, ATTACK)
    assert replay_trace(trace).agrees
    guesses = [a.id for a in ATTACK if isinstance(a, Submit) and a.id != "victim"]
    found = [view(ATTACKED, ATTACK, frozenset({id})) for id in guesses]
    told = [hits(e for events in seen for e in events) for seen in found]
    assert told == [[0], [2], [2], [2], [4], [4], [4], [4], [4]], "two blocks, then nothing more"


def test_the_picture_of_the_attack_is_current(tmp_path: Path) -> None:
    from servecheck.cli import main

    out = tmp_path / "attack.svg"
    assert main(["render", str(TRACES / "attack.jsonl"), "--step", str(STEP), "-o", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs" / "attack.svg").read_text()


WORDS = {4: "four", 12: "twelve", 64: "sixty-four"}


def test_the_page_tells_what_the_tests_see() -> None:
    page = " ".join((ROOT / "docs" / "isolation.md").read_text().split())
    wrong = read_trace(TRACES / "OUT-1.jsonl").verdict
    assert wrong is not None
    assert wrong.what == "r0: token 0 of the output is 5, the model says 4"
    for said in (
        "1,428 states, 5,856 transitions",
        "| 3 tokens | 0 blocks | 4 tokens |",
        "| 15 tokens | 2 blocks | 0 tokens |",
        "delivered token 5, what this model says to an unwritten slot, where its own answer is 4",
        "0, 2, 2, 2, 4 and then four times 4",
        f"at most {WORDS[2**2]} guesses",
        f"three blocks take {WORDS[3 * 2**2]}",
        f"would take {WORDS[(2**2) ** 3]}",
        "| none | 4 tokens | 0 tokens |",
        "| the same salt | 4 tokens | 0 tokens |",
        "| a salt each | 0 tokens | 0 tokens |",
    ):
        assert said in page


def test_the_traces_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m servecheck.view.attack traces/theory`"""
    (tmp_path / "falls").symlink_to(ROOT / "traces" / "falls")
    monkeypatch.setattr("sys.argv", ["attack", str(tmp_path / "theory")])
    assert make() == 0
    for name in ("attack.jsonl", "OUT-1.jsonl"):
        mine, kept = read_trace(tmp_path / "theory" / name), read_trace(TRACES / name)
        assert (mine.machine, mine.lines, mine.verdict) == (kept.machine, kept.lines, kept.verdict)
