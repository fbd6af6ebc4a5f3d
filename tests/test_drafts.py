"""Draft sources, and drafts through the machine: what is wrong leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product, zip_longest

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servespec import machine as machine_module
from servespec import moves
from servespec import pool as blocks
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import Namespace, Token, Tokens, extend_keys
from servespec.config import Config, blocks_for
from servespec.errors import ConfigError, SpecError
from servespec.events import Admitted, Delivered, Event, Preempted, Reason, Scheduled
from servespec.machine import Machine
from servespec.plan import Planned
from servespec.policy import PROFILES, VLLM_0_33, Policy, Publish, prioritised
from servespec.pool import Blocks, Pool
from servespec.request import Request
from servespec.theory.drafts import NOTHING, FixedRate, Given, Model, NGram, Source
from servespec.theory.speculation import draw, expected_tokens
from servespec.theory.verification import (
    Moment,
    Server,
    alone,
    answer,
    drafts_left_behind,
    greedy_differs,
    outputs,
    published_keys,
    serve,
)

F = Fraction
AFTER_STEP = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)
POLICIES = {
    **PROFILES,
    "published after the step": AFTER_STEP,
    "and by priority": prioritised(AFTER_STEP),
}
"""By priority and published at scheduling CON-1 falls, and outputs with it: see below."""


def sizes(gamma: int, blocks: int = 40, seats: int = 2, budget: int = 40) -> Config:
    return Config(
        num_blocks=blocks,
        block_size=2,
        max_model_len=20,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        num_speculative_tokens=gamma,
    )


def mixed(text: Tokens) -> Token:
    """A model with a long memory: what it says depends on all that was said, and where."""
    number = 7
    for token in text:
        number = (number * 31 + token + 1) % 997
    return number % 2


def events_of(kind: type, moments: tuple[Moment, ...]) -> int:
    return sum(isinstance(event, kind) for moment in moments for event in moment.events)


# --- sources -------------------------------------------------------------------------------


def test_given_drafts_come_turn_by_turn() -> None:
    source = Given(((1, 2, 3), (4,)))
    assert source.propose((9,), 0, 2) == (1, 2)
    assert source.propose((9,), 1, 2) == (4,)
    assert source.propose((9,), 2, 2) == NOTHING.propose((9,), 0, 2) == ()


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ((1, 2, 3, 9, 1, 2), (3, 9, 1)),  # (1, 2) stood at 0
        ((5, 1, 2, 3, 1, 2, 4, 1, 2), (3, 1, 2)),  # twice: the first place
        ((7, 1, 5, 2, 1, 8, 2, 1), (8, 2, 1)),  # (2, 1) before (1), although (1) stood earlier
        ((4, 4, 4, 4), (4,)),  # overlap: (4, 4, 4) stood at 0, one token is left behind it
        ((1, 2, 3, 4), ()),  # nothing twice
        ((1,), ()),
    ],
    ids=str,
)
def test_the_last_n_gram_is_looked_up(text: Tokens, drafts: Tokens) -> None:
    assert NGram(1, 3).propose(text, 0, 3) == drafts


def test_a_short_match_does_not_count_if_a_longer_one_is_asked_for() -> None:
    text = (1, 5, 2, 1)
    assert NGram(1, 3).propose(text, 0, 2) == (5, 2)
    assert NGram(2, 3).propose(text, 0, 2) == ()
    assert NGram(2, 2).propose((1, 5, 3, 1, 5), 0, 2) == (3, 1)
    with pytest.raises(ConfigError, match="n-gram: 3 … 2 are no lengths"):
        NGram(3, 2)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple), st.integers(0, 4))
def test_what_is_looked_up_did_follow(text: Tokens, gamma: int) -> None:
    """Drafts stand in the text behind a copy of its end, and no longer end has a copy."""
    drafts = NGram(1, 4).propose(text, 0, gamma)
    assert len(drafts) <= gamma
    repeats = [
        n for n in range(1, min(4, len(text) - 1) + 1)
        if any(text[i : i + n] == text[-n:] for i in range(len(text) - n))
    ]  # fmt: skip
    if gamma and repeats:
        end = text[-max(repeats) :]
        followed = end + drafts
        assert drafts
        assert any(text[i : i + len(followed)] == followed for i in range(len(text) - len(end)))
    else:
        assert drafts == ()


def test_a_fixed_rate_is_right_with_its_chance() -> None:
    """Of 6,000 turns with γ = 3 at α = 2/3, the tokens come near Equation 1; each is the same when
    it is asked for again."""
    source, gamma, turns = FixedRate(mixed, F(2, 3), seed=5), 3, 6_000
    tokens = 0
    for turn in range(turns):
        drafts = source.propose((1, turn), turn, gamma)
        assert len(drafts) == gamma
        assert drafts == source.propose((1, turn), turn, gamma)
        right = 0
        while right < gamma and drafts[right] == mixed((1, turn, *drafts[:right])):
            right += 1
        tokens += right + 1
    assert abs(F(tokens, turns) - expected_tokens(F(2, 3), gamma)) < F(5, 100)
    assert FixedRate(mixed, F(1), 5).propose((1,), 0, 1) == (mixed((1,)),)
    assert FixedRate(mixed, F(0), 5).propose((1,), 0, 1) == (mixed((1,)) + 1,)
    with pytest.raises(ConfigError, match="alpha: 3/2 lies outside"):
        FixedRate(mixed, F(3, 2), 5)


def test_each_turn_of_a_fixed_rate_has_a_thousand_draws_of_its_own() -> None:
    """A draw below α is a right draft; one of exactly α is a wrong one, or α = 0 would not be
    never. The model says 9 and the drafts are 9 or 10."""
    source = FixedRate(lambda text: 9, F(1, 2), seed=5)
    for turn in range(4):
        agree = [draw(5, 1_000 * turn + place) < F(1, 2) for place in range(6)]
        assert [d == 9 for d in source.propose((1,), turn, 6)] == agree
    for number in (0, 1_000):
        assert FixedRate(lambda text: 9, draw(5, number), 5).propose((), number // 1_000, 1) == (
            10,
        )


# --- SPE-4: greedy output ------------------------------------------------------------------


def test_a_round_by_hand() -> None:
    """The model counts modulo 10. Of the drafts (2, 3, 7) after 1 it keeps 2 and 3 and says 4; of
    (5, 6) it keeps both and adds 7."""

    def counting(text: Tokens) -> Token:
        return (text[-1] + 1) % 10

    machine = Machine(sizes(3), VLLM_0_33)
    server = Server(machine, counting, {"r": Given(((2, 3, 7), (5, 6)))})
    moments = serve(server, [Submit("r", (0,), 7)])
    told = [e.tokens for m in moments for e in m.events if isinstance(e, Delivered)]
    assert told == [(1,), (2, 3, 4), (5, 6, 7)]
    played = [type(m.action) for m in moments]
    assert played == [Submit, *(Schedule, Complete) * 3]


def test_a_server_without_drafts_is_the_same_but_for_them() -> None:
    config = evolve(sizes(3), num_lookahead_tokens=2)
    server = Server(Machine(config, VLLM_0_33), mixed, {"r": Given(((2, 3, 7),))}, most_passes=17)
    plain = Machine(sizes(0), VLLM_0_33)
    assert server.without_drafts == Server(plain, mixed, {}, most_passes=17)


def test_who_was_sent_back_while_the_plan_ran_is_not_answered() -> None:
    """Two requests, one plan; a reset sends both back before it has run."""
    machine = Machine(sizes(2), VLLM_0_33)
    server, state = Server(machine, mixed), machine.initial()
    for action in (Submit("a", (0, 1), 4), Submit("b", (1,), 4), Schedule()):
        state = machine.apply(state, action).state
    assert [o.id for o in answer(server, state, {}).outputs] == ["a", "b"]
    state = machine.apply(state, ResetCache(preempt_running=True)).state
    assert [r.id for r in state.live] == ["a", "b"]
    assert answer(server, state, {}) == Complete(())


MODELS: dict[str, Model] = {
    "the same for ever": lambda text: 1,
    "alternating": lambda text: 1 - text[-1] if text else 0,
    "with a long memory": mixed,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("policy", ["VLLM_0_33", "MINIATURE"])
def test_every_list_of_drafts_of_two_tokens(policy: str, model: str) -> None:
    """γ = 2, all drafts of up to two of two tokens in each of the first three turns: 7³ runs."""
    machine = Machine(sizes(2), PROFILES[policy])
    lists = [d for n in range(3) for d in product((0, 1), repeat=n)]
    for drafts in product(lists, repeat=3):
        server = Server(machine, MODELS[model], {"r": Given(drafts)})
        script = [Submit("r", (0, 1, 0), 6)]
        assert greedy_differs(server, script) is None
        assert drafts_left_behind(server, script) is None


@pytest.mark.parametrize("gamma", [1, 3])
def test_every_list_of_drafts_of_other_lengths(gamma: int) -> None:
    """γ = 1 over three turns, γ = 3 over two: the last drafts run into max_tokens."""
    machine = Machine(sizes(gamma), AFTER_STEP)
    lists = [d for n in range(gamma + 1) for d in product((0, 1), repeat=n)]
    for drafts in product(lists, repeat=3 if gamma == 1 else 2):
        server = Server(machine, mixed, {"r": Given(drafts)})
        script = [Submit("r", (0, 1, 0), 5, stop=())]
        assert greedy_differs(server, script) is None
        assert drafts_left_behind(server, script) is None


PREFIX = (0, 1, 0, 1, 0)


def rough() -> tuple[Server, list[Action]]:
    """Two texts with one prefix, in a pool that is too small for both, prompts in pieces."""
    machine = Machine(sizes(2, blocks=12, budget=4), VLLM_0_33)
    sources: dict[str, Source] = {
        "a": FixedRate(mixed, F(1, 2), seed=3, wrong=lambda token: 1 - token),
        "b": NGram(1, 3),
    }
    script: list[Action] = [
        Submit("a", PREFIX, 14),
        Schedule(),
        Schedule(),
        Submit("b", (*PREFIX, 0), 13),
    ]
    return Server(machine, mixed, sources), script


def test_with_chunks_sharing_and_preemption() -> None:
    server, script = rough()
    moments = serve(server, script)
    passes = [e for m in moments for e in m.events if isinstance(e, Scheduled)]
    hits = [e.hit_tokens for m in moments for e in m.events if isinstance(e, Admitted)]
    told = Counter(len(e.tokens) for m in moments for e in m.events if isinstance(e, Delivered))
    assert passes[0].tokens == 4 < len(PREFIX), "the prompt is cut"
    assert max(hits) >= 4, "the prefix is shared"
    assert events_of(Preempted, moments) >= 1
    assert set(told) == {1, 2, 3}, "drafts are rejected at once, later, and not at all"
    assert greedy_differs(server, script) is None
    assert drafts_left_behind(server, script) is None


def test_a_plan_that_never_ran_and_a_reset_in_between() -> None:
    machine = Machine(sizes(2), AFTER_STEP)
    source = FixedRate(mixed, F(3, 4), seed=2, wrong=lambda token: 1 - token)
    server = Server(machine, mixed, {"a": source})
    script: list[Action] = [Submit("a", PREFIX, 10), Discard(), Schedule(), Schedule(), Discard()]
    script += [Schedule(), ResetCache(preempt_running=True), Schedule(), Schedule()]
    assert events_of(Preempted, serve(server, script)) == 1
    assert greedy_differs(server, script) is None
    assert drafts_left_behind(server, script) is None


def test_who_is_aborted_has_got_the_beginning() -> None:
    machine = Machine(sizes(2), VLLM_0_33)
    server = Server(machine, mixed, {"a": FixedRate(mixed, F(1), seed=0)})
    script: list[Action] = [Submit("a", PREFIX, 10), Schedule(), Schedule(), Abort("a")]
    assert len(outputs(serve(server, script))["a"]) == 4
    assert greedy_differs(server, script) is None


def test_who_is_aborted_at_once_has_got_nothing() -> None:
    server = Server(Machine(sizes(2), VLLM_0_33), mixed)
    assert greedy_differs(server, [Submit("a", PREFIX, 10), Abort("a")]) is None


def test_an_output_that_is_cut_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beginning will do for who is aborted, and for nobody else: not one token short, not empty,
    not because another one was aborted."""
    server = Server(Machine(sizes(0), VLLM_0_33), lambda text: len(text))
    script: list[Action] = [Submit("a", (0, 0), 3), Submit("b", (0,), 1), Schedule(), Abort("a")]
    assert greedy_differs(server, script) is None
    monkeypatch.setattr("servespec.theory.verification.outputs", lambda moments: {"a": (2, 3)})
    said = "request 'b' was given (), the target alone says (1,)"
    assert greedy_differs(server, script) == said
    said = "request 'a' was given (2, 3), the target alone says (2, 3, 4)"
    assert greedy_differs(server, script[:2]) == said


def test_the_target_alone_stops_where_a_request_does() -> None:
    submit = Submit("a", (0, 1), 50, stop=(4,))
    assert alone(lambda text: len(text), submit, 20) == (2, 3, 4)
    assert alone(lambda text: 9, submit, 5) == (9, 9, 9)
    assert alone(lambda text: 9, evolve(submit, max_tokens=2), 20) == (9, 9)


def test_where_content_falls_the_output_falls_with_it() -> None:
    """Victims by priority, published at scheduling (`traces/falls/CON-1r.jsonl`): the second pass
    schedules r0, whose blocks are published, and then sends it back for r1. When r0 comes again it
    hits a block that was never written, and the model reads nothing: it says 0 instead of 4."""
    config = Config(
        num_blocks=6,
        block_size=1,
        max_model_len=5,
        max_num_batched_tokens=3,
        max_num_seqs=2,
        long_prefill_token_threshold=2,
    )
    script = [Submit("r0", (0, 0, 0, 0), 1), Submit("r1", (0,), 2, with_last=True)]

    def model(text: Tokens) -> Token:
        return 4 if len(text) == 4 else 0

    wrong = greedy_differs(Server(Machine(config, prioritised(VLLM_0_33)), model), script)
    assert wrong == "request 'r0' was given (0,), the target alone says (4,)"
    for policy in (VLLM_0_33, prioritised(AFTER_STEP)):
        assert greedy_differs(Server(Machine(config, policy), model), script) is None


# --- SPE-3 and SPE-4, drawn -----------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Server, list[Action]]:
    gamma = draw(st.integers(1, 3))
    policy: Policy = POLICIES[draw(st.sampled_from(sorted(POLICIES)))]
    size = draw(st.integers(1, 3))
    config = evolve(
        sizes(gamma),
        block_size=size,
        num_blocks=blocks_for(20, size) + 1 + draw(st.integers(0, 6)),
        max_num_batched_tokens=(draw(st.integers(1 + gamma, 9)) if policy.chunked_prefill else 40),
        num_lookahead_tokens=draw(st.integers(0, 1)),
        max_num_seqs=draw(st.integers(1, 3)),
    )
    machine = Machine(config, policy)
    tokens = st.integers(0, 1)
    lists = st.lists(st.lists(tokens, max_size=gamma).map(tuple), max_size=6).map(tuple)
    source = st.one_of(
        st.builds(Given, lists),
        st.just(NGram(1, 2)),
        st.builds(
            FixedRate,
            st.just(mixed),
            st.fractions(0, 1, max_denominator=4),
            st.integers(0, 9),
            st.just(lambda token: 1 - token),
        ),
    )
    script: list[Action] = []
    sources: dict[str, Source] = {}
    others = [Schedule(), ResetCache(False), ResetCache(True)]
    others += [Discard()] if machine.can_discard else []
    for name in "abc"[: draw(st.integers(1, 3))]:
        prompt = draw(st.lists(tokens, min_size=1, max_size=7))
        stop = draw(st.sampled_from([(), (), (1,)]))
        longest, priority = draw(st.integers(1, 8)), draw(st.integers(0, 1))
        script.append(Submit(name, tuple(prompt), longest, priority=priority, stop=stop))
        script += draw(st.lists(st.sampled_from(others), max_size=3))
        sources[name] = draw(source)
    return Server(machine, mixed, sources), script


@settings(max_examples=100)
@given(worlds())
def test_any_drafts_in_any_world(world: tuple[Server, list[Action]]) -> None:
    server, script = world
    assert greedy_differs(server, script) is None
    assert drafts_left_behind(server, script) is None


# --- wrong machines are caught -------------------------------------------------------------


def test_a_machine_that_publishes_drafts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are those of text *and drafts*, so a block that a rejected draft completes is found
    by whoever has that text."""
    plan = moves._plan

    def eager(
        p: moves.Pass,
        place: int,
        r: Request,
        tokens: int,
        taken: tuple[int, ...],
        *,
        admitted: bool,
    ) -> moves.Pass:
        known = r.text(0, r.length) + tuple(d for d in r.drafts if d >= 0)
        longer = extend_keys(r.keys, r.namespace, known, p.config.block_size)
        return plan(p, place, evolve(r, keys=longer), tokens, taken, admitted=admitted)

    server = Server(Machine(sizes(2), VLLM_0_33), lambda text: 1, {"a": Given(((0, 0),))})
    script = [Submit("a", (1, 1, 1), 6)]
    assert drafts_left_behind(server, script) is None
    stored = published_keys(serve(server, script))
    monkeypatch.setattr(moves, "_plan", eager)
    found = drafts_left_behind(server, script)
    assert found is not None
    assert found.startswith("keys of no true text were published: ['Chain(6 tokens")
    assert len(published_keys(serve(server, script)) - stored) >= 1


def test_a_machine_that_publishes_less_with_drafts_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there may be drafts only the first block is published: no key is wrong, two are
    missing."""
    right = moves.published

    def shy(
        pool: Pool, policy: Policy, request: Request, tokens: int, config: Config, moment: Publish
    ) -> tuple[Pool, Request, tuple[Event, ...]]:
        most = config.block_size if config.num_speculative_tokens else tokens
        return right(pool, policy, request, min(tokens, most), config, moment)

    server = Server(Machine(sizes(2), VLLM_0_33), lambda text: 1, {"a": Given(((0, 0),))})
    script = [Submit("a", (1, 1, 1), 4)]
    assert drafts_left_behind(server, script) is None
    for module in (moves, machine_module):
        monkeypatch.setattr(module, "published", shy)
    assert drafts_left_behind(server, script) == "1 keys were published, without drafts 3"


def test_a_machine_that_keeps_a_rejected_draft_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """C is lowered by one too few (rule 32): so a rejected token stays below the text."""
    right = machine_module.with_tokens

    def late(
        machine: Machine, request: Request, entry: Planned, output: Output
    ) -> tuple[Request, Reason | None, tuple[Event, ...]]:
        grown, reason, told = right(machine, request, entry, output)
        rejects = entry.yields and len(entry.drafts) >= len(output.tokens)
        return evolve(grown, computed=grown.computed + rejects), reason, told

    wrong = FixedRate(lambda text: 1, F(0), seed=0)
    server = Server(Machine(sizes(2), VLLM_0_33), lambda text: 1, {"a": wrong})
    script = [Submit("a", (1, 1, 1), 6)]
    assert drafts_left_behind(server, script) is None
    monkeypatch.setattr(machine_module, "with_tokens", late)
    found = drafts_left_behind(server, script)
    assert found == "request 'a' with 2 tokens of output has other content, C [5]"
    # Drafts that are never rejected do not show it.
    agreeing = evolve(server, sources={"a": FixedRate(lambda text: 1, F(1), seed=0)})
    assert drafts_left_behind(agreeing, script) is None


def test_a_machine_that_never_writes_a_slot_twice_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands behind the text after a rejection stays there when the text grows: C and the
    keys are right, and the model, which says the same to everything, does not notice."""
    right = blocks.write

    def once(
        pool: Pool, size: int, table: Blocks, namespace: Namespace, start: int, tokens: Tokens
    ) -> Pool:
        done = right(pool, size, table, namespace, start, tokens)
        kept = [
            evolve(
                new,
                content=tuple(
                    a if a is not None else b for a, b in zip_longest(old.content, new.content)
                ),
            )
            for old, new in zip(pool.blocks, done.blocks, strict=True)
        ]
        return evolve(done, blocks=tuple(kept))

    wrong = FixedRate(lambda text: 1, F(0), seed=0)
    server = Server(Machine(sizes(2), VLLM_0_33), lambda text: 1, {"a": wrong})
    script = [Submit("a", (1, 1, 1), 6)]
    assert drafts_left_behind(server, script) is None
    monkeypatch.setattr("servespec.pool.write", once)
    found = drafts_left_behind(server, script)
    assert found is not None
    assert "tokens of output has other content" in found
    assert drafts_left_behind(server.without_drafts, script) is None


@pytest.mark.parametrize("wrong", ["accepts all", "accepts none but goes on"])
def test_a_wrong_verification_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from servespec.theory import verification

    def accepts(server: Server, pool: object, entry: Planned) -> Tokens:
        said = server.model(())
        return (*entry.drafts, said) if wrong == "accepts all" else (said,)

    server, script = rough()
    monkeypatch.setattr(verification, "_verified", accepts)
    found = greedy_differs(evolve(server, sources={"a": Given(((0, 0),) * 9)}), script)
    assert found is not None
    assert "the target alone says" in found


def test_who_can_never_be_served_is_named() -> None:
    """Blocks for 4 tokens, and a prompt of 9."""
    server = Server(Machine(sizes(1, blocks=3), VLLM_0_33), mixed, most_passes=5)
    with pytest.raises(SpecError, match=r"serve: \['a'\] are not served"):
        serve(server, [Submit("a", (0,) * 9, 3)])
