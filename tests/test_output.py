"""What a user reads: the model's own answer, whatever the cache does (OUT-1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servecheck.trace.read import read_trace
from servespec.actions import Complete, Output, Schedule, Submit
from servespec.chain import Chain, Namespace, Tokens, extend_keys, link
from servespec.config import Config
from servespec.events import Delivered, Event
from servespec.machine import Machine
from servespec.plan import Plan, Planned
from servespec.policy import MINIATURE, PROFILES, VLLM_0_33, prioritised
from servespec.theory.output import (
    answers,
    continuation,
    digest_model,
    wrong_output,
)
from servespec.theory.stream import Arrival, Stream, run

TRACES = Path(__file__).resolve().parents[1] / "traces" / "theory"
ANN = Namespace(salt="ann")
ROOMY = Machine(Config(9, 2, 8, 8, 2), VLLM_0_33)
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


def test_the_model_says_every_token_of_its_vocabulary_and_one_more() -> None:
    """To 1, 1 1, 1 1 1 and so on, and to a slot that nobody wrote."""
    model, at = digest_model(5), None
    said = set()
    for _ in range(40):
        at = link(Namespace(), at, (1,))
        said.add(model(at))
    assert said == {0, 1, 2, 3, 4}
    assert all(isinstance(token, int) for token in said)
    assert model(None) == 5


def test_of_the_drafts_so_many_are_the_models_own() -> None:
    """After 1 2 3 the model goes on with o1 o2 o3. It says o1, and proposes o2 and o3; unless it is
    asked for, neither is right, nor is one that follows a wrong one."""
    machine = Machine(Config(17, 2, 16, 16, 2, num_speculative_tokens=2), VLLM_0_33)
    o1, o2, o3 = continuation(MODEL, Namespace(), (1, 2, 3), 3)
    state = machine.apply(machine.initial(), Submit("a", (1, 2, 3), 7)).state
    state = machine.apply(state, Schedule()).state
    assert answers(MODEL, right=2)(machine, state) == Complete((Output("a", (o1,), (o2, o3)),))
    (one,) = answers(MODEL, right=1)(machine, state).outputs
    assert (one.tokens, one.drafts[0]) == ((o1,), o2)
    assert one.drafts[1] != o3
    (none,) = answers(MODEL)(machine, state).outputs
    assert (none.tokens, len(none.drafts)) == ((o1,), 2)
    assert none.drafts[0] != o2


def test_behind_a_slot_that_nobody_wrote_nothing_can_be_read() -> None:
    """A pass that computes the second token of a text whose first one was never written: the model
    says 5 to that, and would go on to say 5."""
    machine = Machine(Config(3, 2, 8, 8, 2, num_speculative_tokens=2), MINIATURE)
    entry = Planned("a", Namespace(), 1, (7,), (), (0, 1), 0, True, False, False)
    state = evolve(machine.initial(), in_flight=(Plan((entry,)),))
    assert answers(MODEL, right=2)(machine, state) == Complete((Output("a", (5,), (5, 5)),))


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
    model = digest_model(5)
    machine, state = trace.machine, trace.machine.initial()
    assert machine.policy == prioritised(VLLM_0_33)
    events: list[Event] = []
    for action in trace.actions:
        if isinstance(action, Complete):
            assert action == answers(model)(machine, state), "the system is closed"
        moved = machine.apply(state, action)
        state, events = moved.state, [*events, *moved.events]
    wrong = [
        told
        for submit in trace.actions
        if isinstance(submit, Submit) and (told := wrong_output(model, submit, events))
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


def test_a_hash_without_the_namespace_gives_wrong_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is known whoever it was computed for. Ann reads a block of the public: what is behind
    it was not computed from her text, and the model answers to that."""

    def shared(
        known: tuple[Chain, ...], namespace: Namespace, text: Tokens, size: int
    ) -> tuple[Chain, ...]:
        return extend_keys(known, Namespace(), text, size)

    submits = [Submit("a", (1, 2, 3), 1), Submit("b", (1, 2, 4), 2, ANN)]
    assert wrong_output(MODEL, submits[1], life(ROOMY, submits)["b"]) is None
    monkeypatch.setattr("servespec.request.extend_keys", shared)
    told = wrong_output(MODEL, submits[1], life(ROOMY, submits)["b"])
    assert told is not None
    assert told.startswith("b: token 0 of the output is 5, ")


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
