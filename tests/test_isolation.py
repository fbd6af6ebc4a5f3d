"""Properties of two runs: what names do, what one tenant sees of another, what a user reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servecheck.fuzz.draw import pick
from servecheck.fuzz.machine import Drawn
from servecheck.fuzz.moves import MOVES, fire
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import anywhere, begin
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.view.attack import ACTIONS as ATTACK
from servecheck.view.attack import MACHINE as ATTACKED
from servecheck.view.attack import STEP
from servecheck.view.attack import main as make
from servespec.actions import Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import Chain, Namespace, Token, Tokens, extend_keys, link
from servespec.config import Config
from servespec.errors import ActionDisabled, ConfigError, SpecError
from servespec.events import Admitted, BlockRemoved, Delivered, Event
from servespec.machine import Machine, Universe
from servespec.plan import State
from servespec.policy import MINIATURE, PROFILES, VLLM_0_33, Order, Policy, prioritised
from servespec.pool import extend
from servespec.theory.attack import attacked
from servespec.theory.isolation import disguised, tells, view
from servespec.theory.output import (
    answers,
    continuation,
    digest_model,
    wrong_output,
)
from servespec.theory.renaming import NamesTokens, Renaming, same_token, tells_ids_apart, unequal
from servespec.theory.stream import Arrival, Stream, run

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "traces" / "theory"
unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes a minute: set SERVECHECK_SLOW to run it"
)
ANN, BOB = Namespace(salt="ann"), Namespace(salt="bob")


def walked(data: st.DataObject, policy: Policy | None = None, moves: int = 25) -> Walk:
    """A random walk in a random world."""
    chance = Drawn(data)
    walk = begin(chance, anywhere(policy=policy), (), None)
    for _ in range(data.draw(st.integers(1, moves))):
        enabled = [move for move in MOVES.values() if move.enabled(walk)]
        fire(pick(chance, enabled), walk, chance)
    return walk


def transitions(machine: Machine, actions: list[Action]) -> Iterator[tuple[State, Action]]:
    state = machine.initial()
    for action in actions:
        yield state, action
        state = machine.apply(state, action).state


# --- EQV-1 -----------------------------------------------------------------------------------


def swapped(namespace: Namespace, token: Token) -> Token:
    """0 and 1 change places, others go far away; in a namespace with a salt all go."""
    near = token + 50 if namespace.salt else 1 - token
    return near if token in (0, 1) else token + 100


@given(st.data())
@settings(max_examples=60)
def test_renaming_commutes_with_every_action_of_a_walk(data: st.DataObject) -> None:
    walk = walked(data)
    first = walk.policy.first_block
    usable = list(range(first, walk.config.num_blocks))
    order = data.draw(st.permutations(usable))
    ids = sorted({a.id for a in walk.actions if isinstance(a, Submit)})
    others = ids if tells_ids_apart(walk.config, walk.policy) else data.draw(st.permutations(ids))
    renaming = Renaming(
        dict(zip(usable, order, strict=True)), swapped, dict(zip(ids, others, strict=True))
    )
    for state, action in transitions(walk.machine, walk.actions):
        assert unequal(walk.machine, state, action, renaming) is None


def reachable(machine: Machine, universe: Universe) -> Iterator[tuple[State, tuple[Action, ...]]]:
    """Every state of a scope with its enabled actions, breadth first."""
    seen, queue = {machine.initial()}, [machine.initial()]
    for state in queue:
        actions = tuple(machine.enabled(state, universe))
        yield state, actions
        for action in actions:
            after = machine.apply(state, action).state
            if after not in seen:
                seen.add(after)
                queue.append(after)


SCOPE = Universe(
    submits=(Submit("a", (0, 1), 2), Submit("b", (0, 0), 1, ANN, stop=(1,))),
    tokens=(0, 1),
    resets=(ResetCache(True),),
)


@pytest.mark.parametrize(
    ("policy", "states", "steps"),
    [
        (VLLM_0_33, 1_428, 5_856),
        (MINIATURE, 520, 2_144),
        pytest.param(prioritised(VLLM_0_33), 1_428, 5_856, marks=[pytest.mark.slow, unless_asked]),
    ],
)
def test_renaming_commutes_on_all_transitions_of_a_scope(
    policy: Policy, states: int, steps: int
) -> None:
    """Three blocks of one token, two requests, two tokens: every order of the blocks, with the
    names of the tokens, and of the requests where they break no tie, as they are and exchanged."""
    first = policy.first_block
    machine = Machine(Config(3 + first, 1, 4, 8, 2), policy)
    other: dict[str, str] = {} if policy.order is Order.PRIORITY else {"a": "b", "b": "a"}
    both: tuple[tuple[NamesTokens, dict[str, str]], ...] = (
        (same_token, {}),
        (lambda _, t: 1 - t, other),
    )
    usable = range(first, first + 3)
    renamings = [
        Renaming(dict(zip(usable, order, strict=True)), tokens, ids)
        for order in permutations(usable)
        for tokens, ids in both
    ]
    found = list(reachable(machine, SCOPE))
    assert (len(found), sum(len(actions) for _, actions in found)) == (states, steps)
    for state, actions in found:
        for action in actions:
            for renaming in renamings:
                assert unequal(machine, state, action, renaming) is None


def test_ids_break_ties_by_priority() -> None:
    """Where EQV-1 does not hold: two requests of one priority and one moment. The smaller id is
    served first, so if they change names another one is."""
    machine = Machine(Config(4, 2, 8, 8, 1), prioritised(VLLM_0_33))
    assert tells_ids_apart(machine.config, machine.policy)
    state = machine.apply(machine.initial(), Submit("b", (0,), 1)).state
    twin = Submit("a", (1,), 1, with_last=True)
    assert unequal(machine, state, twin, Renaming(ids={"a": "b", "b": "a"})) is not None
    assert unequal(machine, state, twin, Renaming()) is None


def test_stop_tokens_are_names_too() -> None:
    """A token that ends a request must be renamed with the others."""
    machine = Machine(Config(4, 2, 8, 8, 1), VLLM_0_33)
    state = machine.apply(machine.initial(), Submit("a", (0,), 3, stop=(1,))).state
    state = machine.apply(state, Schedule()).state
    ends = Complete((Output("a", (1,)),))
    assert unequal(machine, state, ends, Renaming(tokens=swapped)) is None
    forgot = Renaming(tokens=swapped, stops=False)
    assert "is not the renaming" in (unequal(machine, state, ends, forgot) or "")


def test_the_null_block_keeps_its_name() -> None:
    machine = Machine(Config(3, 2, 4, 4, 1), VLLM_0_33)
    swap = Renaming({0: 1, 1: 0})
    waiting = machine.apply(machine.initial(), Submit("a", (0,), 1)).state
    assert unequal(machine, waiting, Schedule(), swap) is None, "the machine itself has no number"
    assert swap.state(waiting).pool.free == (0, 2), "but block 0 would be handed out"


def test_a_merging_of_tokens_does_not_commute() -> None:
    """The map must be injective: if 0 and 1 become one, a miss becomes a hit."""
    machine = Machine(Config(8, 1, 8, 8, 2), VLLM_0_33)
    actions: list[Action] = [
        Submit("a", (0, 0), 1),
        Schedule(),
        Complete((Output("a", (5,)),)),
        Submit("b", (1, 0), 1),
        Schedule(),
    ]
    merged = Renaming(tokens=lambda _, t: 0 if t == 1 else t)
    unequals = [unequal(machine, s, a, merged) for s, a in transitions(machine, actions)]
    assert [u is None for u in unequals] == [True, True, True, True, False]


def test_a_renaming_of_blocks_is_a_permutation() -> None:
    with pytest.raises(SpecError, match=r"blocks: \{1: 2\} is no permutation"):
        Renaming({1: 2})


# --- ISO-1 -----------------------------------------------------------------------------------


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
        told = tells(ROOMY, actions, theirs, lambda t: t + 10)
        assert (told is None) is (tokens == 0)
        assert told is None or "hit_tokens=4" in told


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


# --- planted faults --------------------------------------------------------------------------


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


def test_a_pool_that_hands_out_by_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks taken in order of their numbers, not of the queue: EQV-1 falls."""
    monkeypatch.setattr(
        "servespec.pool.extend",
        lambda pool, count: extend(evolve(pool, free=tuple(sorted(pool.free))), count),
    )
    machine = Machine(Config(5, 1, 4, 8, 2), VLLM_0_33)
    swap = Renaming({1: 2, 2: 1})
    state = machine.apply(machine.initial(), Submit("a", (0,), 1)).state
    assert "is not the renaming" in (unequal(machine, state, Schedule(), swap) or "")


def test_a_hash_without_its_parent_gives_wrong_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is known by its own tokens alone. The first request leaves 1 2 | 3 4, the second one
    begins with 3 4 and reads content that was computed behind 1 2."""

    def parentless(
        known: tuple[Chain, ...], namespace: Namespace, text: Tokens, size: int
    ) -> tuple[Chain, ...]:
        whole = range(len(known) * size, len(text) - size + 1, size)
        return known + tuple(link(namespace, None, text[at : at + size]) for at in whole)

    submits = [Submit("a", (1, 2, 3, 4, 5), 1), Submit("b", (3, 4, 6), 2)]
    assert wrong_output(MODEL, submits[1], life(ROOMY, submits)["b"]) is None
    monkeypatch.setattr("servespec.request.extend_keys", parentless)
    told = wrong_output(MODEL, submits[1], life(ROOMY, submits)["b"])
    assert told is not None
    assert told.startswith("b: token 0 of the output is ")


# --- what isolation does not hide: load ------------------------------------------------------


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


# --- the attack ------------------------------------------------------------------------------

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


# --- OUT-1 -----------------------------------------------------------------------------------

MODEL = digest_model(5)


def life(machine: Machine, submits: list[Submit], right: int = 0) -> dict[str, list[Event]]:
    """Each request's events in a closed system, one arriving every step."""
    stream = Stream(tuple(Arrival(step, submit) for step, submit in enumerate(submits)))
    steps = run(machine, stream, answers(MODEL, right), limit=60).steps
    return {s.id: [e for events in steps for e in events] for s in submits}


def test_a_model_goes_on_as_it_would_alone() -> None:
    got = life(ROOMY, [Submit("a", (1, 2, 3), 4)])["a"]
    own = continuation(MODEL, Namespace(), (1, 2, 3), 4)
    assert [t for e in got if isinstance(e, Delivered) for t in e.tokens] == list(own)


def test_the_model_depends_on_all_of_the_text_and_on_the_adapter_alone() -> None:
    big = digest_model(1_000)
    plain = continuation(big, Namespace(), (1, 2, 3), 3)
    assert continuation(big, ANN, (1, 2, 3), 3) == plain
    assert continuation(big, Namespace(adapter="x"), (1, 2, 3), 3) != plain
    assert continuation(big, Namespace(), (2, 2, 3), 3) != plain


@given(st.data())
@settings(max_examples=120)
def test_everybody_gets_the_models_own_answer(data: st.DataObject) -> None:
    """Whatever sharing, chunks, preemptions, drafts and neighbours do, under every policy that
    does not unschedule what it has published."""
    name = data.draw(st.sampled_from(sorted(PROFILES)))
    policy = PROFILES[name]
    gamma = data.draw(st.integers(0, 2))
    bs = data.draw(st.integers(1, 3))
    budget = data.draw(st.integers(1 + gamma, 6)) if policy.chunked_prefill else 32
    blocks = data.draw(st.integers(-(-12 // bs), -(-12 // bs) + 4)) + policy.first_block
    machine = Machine(Config(blocks, bs, 12, budget, 3, num_speculative_tokens=gamma), policy)
    submits = [
        Submit(f"r{i}", tuple(prompt), output, salt)
        for i, (prompt, output, salt) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(
                        st.lists(st.integers(0, 1), min_size=1, max_size=6),
                        st.integers(1, 4),
                        st.sampled_from([Namespace(), ANN]),
                    ),
                    min_size=1,
                    max_size=6,
                )
            )
        )
    ]
    lives = life(machine, submits, right=data.draw(st.integers(0, gamma)))
    for submit in submits:
        assert wrong_output(MODEL, submit, lives[submit.id]) is None


def test_drafts_of_the_model_are_accepted() -> None:
    """Two right drafts a step: seven tokens in three steps, not in seven."""
    machine = Machine(Config(17, 2, 16, 16, 2, num_speculative_tokens=2), VLLM_0_33)
    stream = Stream((Arrival(0, Submit("a", (1, 2, 3), 7)),))
    assert len(run(machine, stream, answers(MODEL, right=2)).steps) == 3
    assert len(run(machine, stream, answers(MODEL, right=0)).steps) == 7


def test_where_content_is_wrong_a_user_reads_a_wrong_answer() -> None:
    """OUT-1 falls with CON-1: by priority, under vLLM's rules. The trace is that of CON-1r, its
    outputs those of the model, up to the wrong token."""
    trace = read_trace(TRACES / "OUT-1.jsonl")
    machine, state = trace.machine, trace.machine.initial()
    assert machine.policy == prioritised(VLLM_0_33)
    events: list[Event] = []
    for action in trace.actions:
        if isinstance(action, Complete):
            assert action == answers(MODEL)(machine, state), "the system is closed"
        moved = machine.apply(state, action)
        state, events = moved.state, [*events, *moved.events]
    wrong = [
        told
        for submit in trace.actions
        if isinstance(submit, Submit) and (told := wrong_output(MODEL, submit, events))
    ]
    assert trace.verdict is not None
    assert trace.verdict.property == "OUT-1"
    assert wrong == [trace.verdict.what]


def test_an_answer_that_is_not_the_models_is_seen() -> None:
    submit = Submit("a", (1, 2, 3), 2)
    own = continuation(MODEL, Namespace(), submit.prompt, 2)
    wrong = (own[0], (own[1] + 1) % 5)
    assert wrong_output(MODEL, submit, [Delivered("a", 0, own)]) is None
    told = wrong_output(MODEL, submit, [Delivered("a", 0, wrong)])
    assert told == f"a: token 1 of the output is {wrong[1]}, the model says {own[1]}"


def test_a_machine_refuses_what_a_wrong_disguise_asks() -> None:
    with pytest.raises(ActionDisabled):
        view(ROOMY, [Schedule(), Schedule()], frozenset())


def test_the_page_tells_what_the_tests_see() -> None:
    page = (ROOT / "docs" / "isolation.md").read_text()
    wrong = read_trace(TRACES / "OUT-1.jsonl").verdict
    assert wrong is not None
    assert wrong.what == "r0: token 0 of the output is 5, the model says 4"
    for said in (
        "1,428 states, 5,856 transitions",
        "| 3 tokens | 0 blocks | 4 tokens |",
        "| 15 tokens | 2 blocks | 0 tokens |",
        "delivered token 5, what this model says to an unwritten slot, where its own answer is 4",
        "0, 2, 2, 2, 4 and then four times 4",
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
