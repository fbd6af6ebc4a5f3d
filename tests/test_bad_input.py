"""What the specification is asked in vain: every complaint names the place, what is wrong there and
what to do, and leaves the state as it was. A legal no is an event, and changes nothing either."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from typing import Any, get_type_hints

import pytest
from attrs import evolve, frozen

from servespec import moves, pool
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.cache import Allocate, CacheAction, CacheMachine, Clear, Free
from servespec.chain import PUBLIC, Chain, Namespace, Tokens, keys, link
from servespec.config import Config, check
from servespec.errors import ActionDisabled, ConfigError, RequestError, SpecError
from servespec.events import Reason, Refused, Submitted
from servespec.machine import Machine, Universe
from servespec.plan import State
from servespec.policy import (
    MINIATURE,
    PROFILES,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Impossible,
    Phase,
    Policy,
    Publish,
    Release,
    Reset,
    Sharing,
    prioritised,
)
from servespec.pool import Pool
from servespec.scheduler import start

SIZES: dict[str, Any] = {
    "num_blocks": 9,
    "block_size": 2,
    "max_model_len": 8,
    "max_num_batched_tokens": 8,
    "max_num_seqs": 2,
}
NAN, INFINITY = float("nan"), float("inf")


def config(**sizes: Any) -> Config:
    return Config(**{**SIZES, **sizes})


def in_short(value: object) -> str:
    return repr(value)[:80]


def machine(policy: Policy = VLLM_0_33, **sizes: Any) -> Machine:
    return Machine(config(**sizes), policy)


def after(loop: Machine, *actions: Action) -> State:
    state = loop.initial()
    for action in actions:
        state = loop.apply(state, action).state
    return state


def complaint(error: type[SpecError], ask: Callable[[], object]) -> tuple[str, str, str]:
    """Where, what, and what to do: the parts of the one complaint, which reads as they do."""
    with pytest.raises(error) as raised:
        ask()
    assert type(raised.value) is error
    parts = (raised.value.where, raised.value.what, raised.value.remedy)
    assert str(raised.value) == "{}: {}; {}".format(*parts)
    return parts


# --- sizes ---------------------------------------------------------------------------------

AT_LEAST_1 = [*SIZES, "max_steps_in_flight"]
AT_LEAST_0 = [
    "long_prefill_token_threshold",
    "num_speculative_tokens",
    "num_lookahead_tokens",
]
NO_NUMBERS = [True, False, 1.0, 2.5, NAN, "3", b"3", None, (3,), 3j]


@pytest.mark.parametrize("value", [0, -1, -(10**30), *NO_NUMBERS], ids=repr)
@pytest.mark.parametrize("name", AT_LEAST_1)
def test_a_size_is_a_whole_number_of_at_least_1(name: str, value: object) -> None:
    said = complaint(ConfigError, lambda: config(**{name: value}))
    assert said == (name, f"{value!r} is no whole number ≥ 1", f"set another {name}")


@pytest.mark.parametrize("value", [-1, -(10**30), *NO_NUMBERS], ids=repr)
@pytest.mark.parametrize("name", AT_LEAST_0)
def test_a_size_that_may_be_nothing_is_a_whole_number(name: str, value: object) -> None:
    said = complaint(ConfigError, lambda: config(**{name: value}))
    assert said == (name, f"{value!r} is no whole number ≥ 0", f"set another {name}")


@pytest.mark.parametrize(
    "value",
    [-0.1, -1, 1, 1.0, 1.5, True, False, "0", None, INFINITY, -INFINITY, NAN, 10**400],
    ids=in_short,
)
def test_the_watermark_is_a_part(value: object) -> None:
    said = complaint(ConfigError, lambda: config(watermark=value))
    assert said == (
        "watermark",
        f"{value!r} lies outside 0 ≤ watermark < 1",
        "set another watermark",
    )


CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"num_speculative_tokens": 8},
        "max_num_batched_tokens",
        "8 cannot hold one token and its 8 drafts: needs ≥ 9",
    ),
    (
        {"num_speculative_tokens": 2, "long_prefill_token_threshold": 1},
        "long_prefill_token_threshold",
        "1 cuts one token and its 2 drafts: needs 0 or ≥ 3",
    ),
    (
        {"num_speculative_tokens": 2, "long_prefill_token_threshold": 2},
        "long_prefill_token_threshold",
        "2 cuts one token and its 2 drafts: needs 0 or ≥ 3",
    ),
    (
        {"num_lookahead_tokens": 1},
        "num_lookahead_tokens",
        "1 looks ahead for drafts while num_speculative_tokens is 0",
    ),
    (
        {"max_steps_in_flight": 2},
        "max_steps_in_flight",
        "2 is more than this version of the machine keeps in flight",
    ),
]


@pytest.mark.parametrize(("sizes", "where", "what"), CONTRADICTIONS, ids=in_short)
def test_sizes_that_contradict_each_other(sizes: dict[str, Any], where: str, what: str) -> None:
    said = complaint(ConfigError, lambda: config(**sizes))
    assert said == (where, what, f"set another {where}")


@pytest.mark.parametrize(
    "sizes",
    [
        dict.fromkeys(SIZES, 1),
        dict.fromkeys(SIZES, 10**400),
        dict.fromkeys(AT_LEAST_0, 0),
        {"watermark": 0},
        {"watermark": 0.999},
        {"num_speculative_tokens": 7},
        {"num_speculative_tokens": 2, "long_prefill_token_threshold": 3},
        {"num_speculative_tokens": 2, "long_prefill_token_threshold": 0},
        {"num_speculative_tokens": 1, "num_lookahead_tokens": 10**9},
        {"long_prefill_token_threshold": 1},
        {"max_steps_in_flight": 1},
    ],
    ids=in_short,
)
def test_sizes_at_the_edge(sizes: dict[str, Any]) -> None:
    made = config(**sizes)
    assert {name: getattr(made, name) for name in sizes} == sizes


def test_of_two_faults_the_first_field_is_named() -> None:
    said = complaint(ConfigError, lambda: config(block_size=0, num_blocks=0))
    assert said[0] == "num_blocks"


# --- sizes and choices ---------------------------------------------------------------------

DISAGREEMENTS: list[tuple[Policy, dict[str, Any], str, str]] = [
    (
        VLLM_0_33,
        {"num_blocks": 1},
        "num_blocks",
        "1 is the null block alone: nothing can be handed out",
    ),
    (
        RESERVED,
        {"num_blocks": 3},
        "max_model_len",
        "8 reserves 4 blocks a request, and only 3 can be handed out",
    ),
    (
        evolve(RESERVED, null_block=True),
        {"num_blocks": 4},
        "max_model_len",
        "8 reserves 4 blocks a request, and only 3 can be handed out",
    ),
    (
        MINIATURE,
        {"long_prefill_token_threshold": 1},
        "long_prefill_token_threshold",
        "1 cuts prompts into chunks while chunked_prefill is off",
    ),
]


@pytest.mark.parametrize(("policy", "sizes", "where", "what"), DISAGREEMENTS)
def test_sizes_that_a_policy_cannot_have(
    policy: Policy, sizes: dict[str, Any], where: str, what: str
) -> None:
    """Alone they are fine; together they make no machine and no pool."""
    fine = config(**sizes)
    for ask in (
        lambda: check(fine, policy),
        lambda: Machine(fine, policy),
        lambda: pool.initial(fine, policy),
    ):
        assert complaint(ConfigError, ask) == (where, what, f"set another {where}")


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (VLLM_0_33, {"num_blocks": 2}),
        (MINIATURE, {"num_blocks": 1}),
        (RESERVED, {"num_blocks": 4}),
        (evolve(RESERVED, null_block=True), {"num_blocks": 5}),
        (evolve(MINIATURE, chunked_prefill=True), {"long_prefill_token_threshold": 1}),
        (MINIATURE, {"long_prefill_token_threshold": 0}),
    ],
)
def test_sizes_that_a_policy_can_just_have(policy: Policy, sizes: dict[str, Any]) -> None:
    loop = machine(policy, **sizes)
    assert loop.initial().pool.free == tuple(range(policy.first_block, sizes.get("num_blocks", 9)))


# --- requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, -1, -(10**30), False])
def test_a_request_must_be_allowed_some_output(max_tokens: int) -> None:
    said = complaint(RequestError, lambda: Submit("a", (1, 2), max_tokens))
    assert said == (
        "request 'a'",
        f"max_tokens is {max_tokens}",
        "allow at least one token of output",
    )


def test_a_request_must_have_a_prompt() -> None:
    said = complaint(RequestError, lambda: Submit("a", (), 1))
    assert said == ("request 'a'", "the prompt is empty", "give at least one token")


def test_a_request_is_named_by_a_text() -> None:
    said = complaint(RequestError, lambda: Submit(7, (1,), 1))  # type: ignore[arg-type]
    assert said == ("request 7", "its id is no text", "name it by a text")


@pytest.mark.parametrize(("priority", "namespace"), [("high", PUBLIC), (0, "a"), (None, None)])
def test_a_request_has_a_priority_and_a_namespace(priority: Any, namespace: Any) -> None:
    said = complaint(RequestError, lambda: Submit("a", (1,), 1, namespace, priority))
    assert said == (
        "request 'a'",
        f"priority is {priority!r}, namespace {namespace!r}",
        "give a whole number and a Namespace",
    )


def test_a_request_must_stay_one() -> None:
    request = Submit("a", (1,), 1)
    assert complaint(RequestError, lambda: evolve(request, prompt=()))[0] == "request 'a'"
    assert complaint(RequestError, lambda: evolve(request, max_tokens=0))[0] == "request 'a'"


# --- actions that the state does not offer -------------------------------------------------

AFTER_STEP = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)
A = Submit("a", (1, 2, 3), 9)
B = Submit("b", (4, 5), 9)
ONE = (A, Schedule())
"""a is in flight, and its step yields a token."""
CHUNK = (Submit("a", (1, 2, 3, 4, 5, 6, 7), 1), Submit("b", (4, 5), 1), Schedule())
"""a and b are in flight; b has one token of its two, and yields none."""
DRAFTED = (*ONE, Complete((Output("a", (7,), (8, 9)),)), Schedule())
"""a is in flight with drafts 8 and 9."""
PADDED = (*ONE, Complete((Output("a", (7,)),)), Submit("b", (4,), 9), Schedule())
"""a and b are in flight, and b, with its one token, is padded."""

CHUNKS_SAMPLE_NONE = "a prefill chunk samples none, any other pass at least one"
IN_ORDER = "accepted drafts are the first ones, and one token follows"


@frozen
class Misuse:
    before: tuple[Action, ...]
    action: Action
    where: str
    what: str
    remedy: str
    policy: Policy = VLLM_0_33
    gamma: int = 0


def of_outputs(
    before: tuple[Action, ...], outputs: tuple[Output, ...], what: str, remedy: str, gamma: int = 0
) -> Misuse:
    return Misuse(before, Complete(outputs), "Complete", what, remedy, gamma=gamma)


MISUSES = {
    "an id that waits": Misuse(
        (A,),
        Submit("a", (4,), 1),
        "Submit 'a'",
        "a request with this id is alive",
        "wait until it has left, or choose another id",
    ),
    "an id that runs": Misuse(
        (*ONE, Complete((Output("a", (7,)),))),
        A,
        "Submit 'a'",
        "a request with this id is alive",
        "wait until it has left, or choose another id",
    ),
    "an id that lives, for a request that would be refused": Misuse(
        (A,),
        Submit("a", (1,) * 99, 1),
        "Submit 'a'",
        "a request with this id is alive",
        "wait until it has left, or choose another id",
    ),
    "a second plan": Misuse(
        ONE, Schedule(), "Schedule", "1 plans are in flight", "complete or discard one first"
    ),
    "a second empty plan": Misuse(
        (Schedule(),),
        Schedule(),
        "Schedule",
        "1 plans are in flight",
        "complete or discard one first",
    ),
    "an output of nothing": of_outputs((), (), "no plan is in flight", "schedule first"),
    "an output twice": of_outputs(
        (*ONE, Complete((Output("a", (7,)),))),
        (Output("a", (7,)),),
        "no plan is in flight",
        "schedule first",
    ),
    "nothing to discard": Misuse(
        (A,), Discard(), "Discard", "no plan is in flight", "schedule first", AFTER_STEP
    ),
    "nothing to discard, and not allowed": Misuse(
        (A,), Discard(), "Discard", "no plan is in flight", "schedule first"
    ),
    "a discard that others may have built on": Misuse(
        ONE,
        Discard(),
        "Discard",
        "this policy publishes blocks before they are written",
        "complete the plan",
    ),
    "a token for nobody": of_outputs(
        ONE,
        (Output("a", (7,)), Output("x", (7,))),
        "request 'x' is not in the plan",
        "bring outputs of the plan's requests only",
    ),
    "a token for one who only waits": of_outputs(
        (*ONE, B),
        (Output("a", (7,)), Output("b", (7,))),
        "request 'b' is not in the plan",
        "bring outputs of the plan's requests only",
    ),
    "two outputs of one": of_outputs(
        ONE, (Output("a", (7,)), Output("a", (7,))), "an id comes twice", "one output a request"
    ),
    "a token of a chunk": of_outputs(
        CHUNK,
        (Output("a", (7,)), Output("b", (7,))),
        "request 'b' has 1 tokens",
        CHUNKS_SAMPLE_NONE,
    ),
    "no output where one is due": of_outputs(
        ONE, (), "request 'a' has 0 tokens", CHUNKS_SAMPLE_NONE
    ),
    "no output behind one that has left": of_outputs(
        (A, B, Schedule(), Abort("a")), (), "request 'b' has 0 tokens", CHUNKS_SAMPLE_NONE
    ),
    "no token where one is due": of_outputs(
        ONE, (Output("a"),), "request 'a' has 0 tokens", CHUNKS_SAMPLE_NONE
    ),
    "a draft where none may be": of_outputs(
        ONE, (Output("a", (7,), (8,)),), "1 drafts for request 'a'", "propose at most 0"
    ),
    "too many drafts": of_outputs(
        ONE,
        (Output("a", (7,), (8, 9, 10)),),
        "3 drafts for request 'a'",
        "propose at most 2",
        gamma=2,
    ),
    "two tokens without drafts": of_outputs(
        ONE, (Output("a", (7, 8)),), "request 'a' accepts (7,) of drafts ()", IN_ORDER
    ),
    "a draft that was not proposed": of_outputs(
        DRAFTED,
        (Output("a", (9, 10)),),
        "request 'a' accepts (9,) of drafts (8, 9)",
        IN_ORDER,
        gamma=2,
    ),
    "a second draft that was not proposed": of_outputs(
        DRAFTED,
        (Output("a", (8, 8, 10)),),
        "request 'a' accepts (8, 8) of drafts (8, 9)",
        IN_ORDER,
        gamma=2,
    ),
    "more drafts than were proposed": of_outputs(
        DRAFTED,
        (Output("a", (8, 9, 10, 11)),),
        "request 'a' accepts (8, 9, 10) of drafts (8, 9)",
        IN_ORDER,
        gamma=2,
    ),
    "padding that is accepted": of_outputs(
        PADDED,
        (Output("a", (7,)), Output("b", (5, 7))),
        "request 'b' accepts (5,) of drafts (-1, -1)",
        IN_ORDER,
        gamma=2,
    ),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_misuse_is_named_and_nothing_happened(misuse: Misuse) -> None:
    loop = machine(misuse.policy, num_speculative_tokens=misuse.gamma)
    state = after(loop, *misuse.before)
    kept, fingerprint = deepcopy(state), hash(state)
    said = complaint(ActionDisabled, lambda: loop.apply(state, misuse.action))
    assert said == (misuse.where, misuse.what, misuse.remedy)
    assert state == kept
    assert hash(state) == fingerprint


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_misuse_is_not_offered_and_the_state_is_as_good_as_before(misuse: Misuse) -> None:
    loop = machine(misuse.policy, num_speculative_tokens=misuse.gamma)
    state, other = after(loop, *misuse.before), after(loop, *misuse.before)
    complaint(ActionDisabled, lambda: loop.apply(state, misuse.action))
    offered = list(loop.enabled(state, Universe((A, B), (7, 8, 9))))
    assert misuse.action not in offered
    assert offered == list(loop.enabled(other, Universe((A, B), (7, 8, 9))))
    for action in offered:
        assert loop.apply(state, action) == loop.apply(other, action)


# --- guards of the parts -------------------------------------------------------------------


def a_pool() -> Pool:
    """Block 1 is held and published, 2 is held without a key, 3 and 4 are free."""
    made = pool.extend(pool.initial(config(num_blocks=5), VLLM_0_33), 2).pool
    return pool.publish(made, (1,), key(1, 2)).pool


def key(*text: int) -> tuple[Chain, ...]:
    return keys(PUBLIC, text, 2)


POOL_MISUSES: dict[str, tuple[Callable[[Pool], object], tuple[str, str, str]]] = {
    "take too many": (
        lambda p: pool.extend(p, 3),
        ("extend", "3 blocks of 2 free ones", "ask `demand` first"),
    ),
    "publish a free block": (
        lambda p: pool.publish(p, (3,), key(5, 6)),
        ("publish", "block 3 is free or published", "publish each held block once"),
    ),
    "publish a published block": (
        lambda p: pool.publish(p, (1,), key(5, 6)),
        ("publish", "block 1 is free or published", "publish each held block once"),
    ),
    "publish a block twice at once": (
        lambda p: pool.publish(p, (2, 2), key(5, 6, 7, 8)),
        ("publish", "block 2 is free or published", "publish each held block once"),
    ),
    "publish the null block": (
        lambda p: pool.publish(p, (0,), key(5, 6)),
        ("publish", "block 0 is free or published", "publish each held block once"),
    ),
    "release a free block": (
        lambda p: pool.release(p, VLLM_0_33, (3,)),
        ("release", "block 3 is free", "release what a table holds"),
    ),
    "release a block twice": (
        lambda p: pool.release(p, VLLM_0_33, (1, 2, 1)),
        ("release", "block 1 is free", "release what a table holds"),
    ),
    "release the null block": (
        lambda p: pool.release(p, VLLM_0_33, (0,)),
        ("release", "block 0 is free", "release what a table holds"),
    ),
    "clear while blocks are held": (
        lambda p: pool.clear(p, VLLM_0_33),
        ("clear", "blocks are held", "release all tables first"),
    ),
}


@pytest.mark.parametrize(("ask", "said"), POOL_MISUSES.values(), ids=POOL_MISUSES)
def test_a_verb_of_the_pool_is_misused(
    ask: Callable[[Pool], object], said: tuple[str, str, str]
) -> None:
    before = a_pool()
    kept = deepcopy(before)
    assert complaint(ActionDisabled, lambda: ask(before)) == said
    assert before == kept


CACHE_MISUSES: dict[str, tuple[tuple[CacheAction, ...], CacheAction, tuple[str, str, str]]] = {
    "an empty text": (
        (),
        Allocate(()),
        ("Allocate", "the text is empty", "give at least one token"),
    ),
    "no slot": (
        (Allocate((1,)), Allocate((2,))),
        Allocate((3,)),
        ("Allocate", "no slot is idle", "free one first"),
    ),
    "no room": (
        (Allocate((1, 2, 3)),),
        Allocate((4, 5, 6)),
        ("Allocate", "2 blocks of 1 free ones", "free a slot first"),
    ),
    "no room beside a hit": (
        (Allocate((1, 2, 3, 4, 5)), Free(0), Allocate((6,))),
        Allocate((1, 2, 3, 4, 5)),
        ("Allocate", "3 blocks of 2 free ones", "free a slot first"),
    ),
    "an idle slot": (
        (Allocate((1,)),),
        Free(1),
        ("Free", "slot 1 is idle", "free an allocated slot"),
    ),
    "a slot twice": (
        (Allocate((1,)), Free(0)),
        Free(0),
        ("Free", "slot 0 is idle", "free an allocated slot"),
    ),
    "a slot behind the last": (
        (Allocate((1,)), Allocate((2,))),
        Free(2),
        ("Free", "slot 2 is idle", "free an allocated slot"),
    ),
    "a slot before the first": (
        (Allocate((1,)), Allocate((2,))),
        Free(-1),
        ("Free", "slot -1 is idle", "free an allocated slot"),
    ),
    "a clear while blocks are held": (
        (Allocate((1,)),),
        Clear(),
        ("clear", "blocks are held", "release all tables first"),
    ),
}


@pytest.mark.parametrize(("before", "action", "said"), CACHE_MISUSES.values(), ids=CACHE_MISUSES)
def test_a_cache_is_misused(
    before: tuple[CacheAction, ...], action: CacheAction, said: tuple[str, str, str]
) -> None:
    """Three blocks of two tokens, two slots."""
    cache = CacheMachine(3, 2, 2, MINIATURE)
    state = cache.initial()
    for done in before:
        state = cache.apply(state, done).state
    kept = deepcopy(state)
    assert complaint(ActionDisabled, lambda: cache.apply(state, action)) == said
    assert state == kept
    assert action not in cache.enabled(state, ((1, 2, 3, 4, 5), (3,), (4, 5, 6)))


NO_MORE_THAN_LEFT = "schedule at least one token and no more than are left"
TOO_MANY, NOTHING = (
    ("a pass", f"{tokens} tokens of 8 left in the budget", NO_MORE_THAN_LEFT) for tokens in (9, 0)
)
NOBODY = "choose one of the running list"
NOT_THERE, NOT_ITS_OWN = "schedule text and drafts that exist", "share blocks that carry its keys"


@pytest.mark.parametrize(
    ("phase", "move", "said"),
    [
        (Phase.RUNNING, moves.Extend(0), NOTHING),
        (Phase.RUNNING, moves.Extend(9), TOO_MANY),
        (
            Phase.RUNNING,
            moves.Extend(2),
            ("a pass", "2 tokens of 1 that request 'a' has to compute", NOT_THERE),
        ),
        (
            Phase.ADMISSION,
            moves.Admit((), 3, ()),
            ("a pass", "3 tokens of 2 that request 'b' has to compute", NOT_THERE),
        ),
        (
            Phase.ADMISSION,
            moves.Admit((1,), 1, ()),
            ("Admit", "hits (1,) or drafts () are not of request 'b'", NOT_ITS_OWN),
        ),
        (
            Phase.ADMISSION,
            moves.Admit((), 2, (8,)),
            ("Admit", "hits () or drafts (8,) are not of request 'b'", NOT_ITS_OWN),
        ),
        (Phase.RUNNING, moves.Preempt(1, 1), ("Preempt", "nobody runs at 1", NOBODY)),
        (Phase.RUNNING, moves.Preempt(-1, 1), ("Preempt", "nobody runs at -1", NOBODY)),
        (Phase.ADMISSION, moves.Admit((), 0, ()), NOTHING),
        (Phase.ADMISSION, moves.Admit((), 9, ()), TOO_MANY),
        (
            Phase.ADMISSION,
            moves.Admit((), 2, ()),
            ("Admit", "max_num_seqs requests run", "wait until one ends"),
        ),
    ],
    ids=in_short,
)
def test_a_move_breaks_a_guard_that_holds_for_every_engine(
    phase: Phase, move: moves.Move, said: tuple[str, str, str]
) -> None:
    """b waits beside a, which runs, and the only seat is taken."""
    loop = machine(max_num_seqs=1)
    state = after(loop, *ONE, Complete((Output("a", (7,)),)), B)
    p = evolve(start(loop.config, loop.policy, state), phases=(phase,))
    kept = deepcopy(p)
    assert complaint(ActionDisabled, lambda: moves.step(p, move)) == said
    assert p == kept


def test_a_move_takes_more_blocks_than_are_free() -> None:
    """Two blocks, both of a, whose next token needs a third."""
    loop = machine(num_blocks=3)
    first = Complete((Output("a", (7,)),))
    state = after(loop, Submit("a", (1, 2, 3, 4), 9), Schedule(), first)
    p = start(loop.config, loop.policy, state)
    said = complaint(ActionDisabled, lambda: moves.step(p, moves.Extend(1)))
    assert said == ("extend", "1 blocks of 0 free ones", "ask `demand` first")


# --- a legal no ----------------------------------------------------------------------------


def every_policy() -> dict[str, Policy]:
    """The profiles, and every value of every axis, one at a time."""
    policies = {**PROFILES, "prioritised": prioritised(VLLM_0_33)}
    for axis, kind in get_type_hints(Policy).items():
        for value in tuple(kind) if issubclass(kind, Enum) else (True, False):
            other: dict[str, Any] = {axis: value}
            policies[f"{axis}-{getattr(value, 'name', value)}"] = evolve(VLLM_0_33, **other)
    return policies


EVERY_POLICY = every_policy()


@pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)
def test_a_prompt_longer_than_a_text_may_be_is_refused_by_all(policy: Policy) -> None:
    loop = machine(policy)
    state = after(loop, A)
    for length in (9, 10, 1000):
        said = loop.apply(state, Submit("x", (1,) * length, 1))
        assert said.events == (Refused("x", Reason.IMPOSSIBLE),)
        assert said.state is state


@pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)
def test_a_prompt_as_long_as_a_text_may_be(policy: Policy) -> None:
    """It is no longer than a text may be, so who queues everything queues it. Who refuses what may
    never end refuses it: cut in chunks, it can stop short of its last token."""
    loop = machine(policy)
    said = loop.apply(loop.initial(), Submit("x", (1,) * 8, 1)).events
    queued = policy.impossible is Impossible.QUEUE
    assert said == ((Submitted("x"),) if queued else (Refused("x", Reason.IMPOSSIBLE),))


LOOKING_AHEAD = {"num_speculative_tokens": 2, "num_lookahead_tokens": 1}
"""Three slots more than the text has."""


@pytest.mark.parametrize(
    ("policy", "sizes", "prompt", "max_tokens", "fits"),
    [
        (MINIATURE, {"num_blocks": 2}, (1, 2), 3, True),
        (MINIATURE, {"num_blocks": 2}, (1, 2), 4, False),
        (MINIATURE, {"max_num_batched_tokens": 4}, (1, 2), 3, True),
        (MINIATURE, {"max_num_batched_tokens": 4}, (1, 2), 4, False),
        (MINIATURE, {"max_num_batched_tokens": 7}, (1,) * 5, 99, True),
        (MINIATURE, {"max_num_batched_tokens": 6}, (1,) * 5, 99, False),
        (MINIATURE, {"num_blocks": 3, **LOOKING_AHEAD}, (1, 2), 2, True),
        (MINIATURE, {"num_blocks": 3, **LOOKING_AHEAD}, (1, 2), 3, False),
        (MINIATURE, {}, (1,) * 7, 99, True),
        (STATIC, {"num_blocks": 2}, (1, 2), 4, False),
        (RESERVED, {"num_blocks": 4}, (1,) * 7, 99, True),
    ],
)
def test_a_request_that_can_never_fit_is_refused_at_the_edge(
    policy: Policy, sizes: dict[str, Any], prompt: Tokens, max_tokens: int, fits: bool
) -> None:
    """Its last token is never stored, so two tokens that may yield three use four slots; and it may
    come back with all of them, which must be computed in one pass."""
    loop = machine(policy, **sizes)
    state = loop.initial()
    said = loop.apply(state, Submit("x", prompt, max_tokens))
    assert said.events == ((Submitted("x"),) if fits else (Refused("x", Reason.IMPOSSIBLE),))
    assert fits or said.state is state


@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("before", [ONE, DRAFTED, CHUNK], ids=["one", "drafted", "chunk"])
def test_a_reset_that_is_refused_changes_nothing(before: tuple[Action, ...], preempt: bool) -> None:
    loop = machine(evolve(VLLM_0_33, reset=Reset.REFUSE_WHILE_HELD), num_speculative_tokens=2)
    state = after(loop, *before)
    said = loop.apply(state, ResetCache(preempt))
    assert said.events == (Refused("reset", Reason.HELD),)
    assert said.state is state


def test_a_reset_that_is_refused_sends_nobody_back() -> None:
    """It may preempt, but the step in flight still writes to the blocks."""
    loop = machine(evolve(VLLM_0_33, release=Release.DEFERRED))
    state = after(loop, *ONE)
    said = loop.apply(state, ResetCache(preempt_running=True))
    assert said.events == (Refused("reset", Reason.HELD),)
    assert said.state is state


@pytest.mark.parametrize("before", [(), (A,), ONE, CHUNK], ids=["empty", "waits", "one", "chunk"])
def test_an_abort_of_nobody_changes_nothing(before: tuple[Action, ...]) -> None:
    loop = machine()
    state = after(loop, *before)
    said = loop.apply(state, Abort("x"))
    assert said.events == ()
    assert said.state is state


@pytest.mark.parametrize("before", [(A,), ONE, CHUNK], ids=["waits", "one", "chunk"])
def test_a_second_abort_changes_nothing(before: tuple[Action, ...]) -> None:
    loop = machine()
    state = after(loop, *before, Abort("a"))
    said = loop.apply(state, Abort("a"))
    assert said.events == ()
    assert said.state is state


def test_an_abort_after_the_end_changes_nothing() -> None:
    loop = machine()
    state = after(loop, Submit("a", (1,), 1), Schedule(), Complete((Output("a", (7,)),)))
    assert loop.apply(state, Abort("a")) == loop.apply(state, Abort("a"))
    assert loop.apply(state, Abort("a")).state is state


@pytest.mark.parametrize("release", Release)
def test_an_id_may_be_used_again_at_once(release: Release) -> None:
    """While the step of its old owner is in flight: what that brings is not for the new one, and
    when the new one leaves, nothing of it stays."""
    loop = machine(evolve(VLLM_0_33, release=release))
    left = after(loop, *ONE, Abort("a"))
    again = loop.apply(left, Submit("a", (4, 5), 9)).state
    assert loop.apply(again, Abort("a")).state == left
    done = loop.apply(again, Complete((Output("a", (7,)),)))
    assert done.events == ()
    assert done.state.live == again.waiting


def test_what_an_aborted_request_brings_is_ignored() -> None:
    loop = machine()
    state = after(loop, *ONE, Abort("a"))
    for outputs in ((), (Output("a", (7,)),)):
        done = loop.apply(state, Complete(outputs))
        assert done.events == ()
        assert done.state.live == ()


# --- nonsense that has a name -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "value"),
    [("lookup", "oldest"), ("null_block", 7), ("publish", "at_schedule"), ("admission", None)],
)
def test_a_choice_that_is_no_value_of_its_axis_is_refused(axis: str, value: object) -> None:
    changes: dict[str, Any] = {axis: value}
    with pytest.raises(ConfigError, match="choose of") as caught:
        evolve(VLLM_0_33, **changes)
    assert caught.value.where == axis


NONSENSE: dict[str, Callable[[], object]] = {
    "a negative token": lambda: Submit("a", (1, -1), 1),
    "a truth for a token": lambda: Submit("a", (1, True), 1),
    "a negative stop token": lambda: Submit("a", (1,), 1, stop=(-2,)),
    "a truth for a count": lambda: Submit("a", (1,), True),
    "padding that is sampled": lambda: Output("a", (-1,)),
    "padding that is drafted": lambda: Output("a", (1,), (-1,)),
}


@pytest.mark.parametrize("make", NONSENSE.values(), ids=NONSENSE)
def test_what_is_no_token_or_no_count_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(RequestError, match="request 'a'"):
        make()


@pytest.mark.parametrize(
    ("sizes", "where"),
    [
        ((0, 2, 3), "num_blocks"),
        ((4, 0, 3), "block_size"),
        ((4, -2, 3), "block_size"),
        ((4, 2, 0), "num_slots"),
    ],
)
def test_a_cache_of_no_size_is_refused(sizes: tuple[int, int, int], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CacheMachine(*sizes, MINIATURE)
    assert caught.value.where == where


def test_a_cache_that_shares_nothing_shares_nothing() -> None:
    cache = CacheMachine(4, 2, 3, evolve(MINIATURE, sharing=Sharing.OFF))
    state = cache.initial()
    for _ in range(2):
        state = cache.apply(state, Allocate((1, 2))).state
    assert [slot.table for slot in state.slots] == [(0,), (1,), ()]


def test_a_link_of_another_namespace_is_refused() -> None:
    parent = link(PUBLIC, None, (501,))
    with pytest.raises(SpecError, match="namespace of the parent"):
        link(Namespace("x"), parent, (502,))
    with pytest.raises(SpecError, match="at least one token"):
        link(PUBLIC, None, ())
