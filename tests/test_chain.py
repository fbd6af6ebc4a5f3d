"""The identity of cached content: one object for each (namespace, parent, tokens), no two for one,
however long the text is; and nothing is kept that nobody refers to."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections.abc import Callable
from itertools import product

import pytest

from servespec import chain as chains
from servespec.actions import Complete, Output, Schedule, Submit
from servespec.chain import PUBLIC, Chain, Namespace, Tokens, chain, extend_keys, keys, link
from servespec.config import Config
from servespec.errors import SpecError
from servespec.events import Admitted, BlockStored, Scheduled
from servespec.machine import Machine
from servespec.policy import VLLM_0_33

# --- one object for one identity -----------------------------------------------------------


def test_the_same_triple_is_the_same_object() -> None:
    first = link(PUBLIC, None, (1, 2))
    assert link(PUBLIC, None, (1, 2)) is first
    assert link(Namespace(None, None), None, tuple(range(1, 3))) is first
    assert link(PUBLIC, first, (3, 4)) is link(PUBLIC, link(PUBLIC, None, (1, 2)), (3, 4))


def test_any_difference_makes_another_object() -> None:
    """The namespace, what stands before, the tokens; and how the same tokens are cut."""
    first = link(PUBLIC, None, (1, 2))
    ones = [
        first,
        link(PUBLIC, None, (1, 3)),
        link(PUBLIC, None, (2, 1)),
        link(PUBLIC, None, (1, 2, 3, 4)),
        link(PUBLIC, first, (3, 4)),
        link(PUBLIC, first, (1, 2)),
        link(PUBLIC, link(PUBLIC, None, (2, 1)), (3, 4)),
        link(PUBLIC, link(PUBLIC, first, (3,)), (4,)),
        link(Namespace("a"), None, (1, 2)),
        link(Namespace(salt="a"), None, (1, 2)),
    ]
    assert len(set(ones)) == len(ones)
    assert all(one != other for one in ones for other in ones if one is not other)


@pytest.mark.parametrize("alive", [False, True])
def test_a_link_behind_another_namespace_is_refused_whoever_is_alive(alive: bool) -> None:
    """Given the first block of a tenant; when a link behind it is asked for in the namespace of
    another one, then there is none, whether or not the tenant itself has that link."""
    first = link(Namespace("ours"), None, (1, 2))
    held = link(Namespace("ours"), first, (3, 4)) if alive else None
    with pytest.raises(SpecError, match="the namespace of the parent"):
        link(Namespace("theirs"), first, (3, 4))
    assert held is None or link(Namespace("ours"), first, (3, 4)) is held


def test_equality_is_identity() -> None:
    """A link that was not made by `link` is equal to none, whatever stands in it."""
    made = link(PUBLIC, None, (1, 2))
    forged = Chain(PUBLIC, None, (1, 2), 2)
    assert forged != made
    assert Chain.__eq__ is object.__eq__
    assert Chain.__hash__ is object.__hash__


def test_chains_are_keys_of_dicts() -> None:
    blocks = {key: block for block, key in enumerate(keys(PUBLIC, (1, 2, 3, 4, 5), 2))}
    assert len(blocks) == 2
    assert blocks[link(PUBLIC, link(PUBLIC, None, (1, 2)), (3, 4))] == 1
    assert link(PUBLIC, None, (3, 4)) not in blocks
    assert Chain(PUBLIC, None, (1, 2), 2) not in blocks


# --- of a text -----------------------------------------------------------------------------


def test_a_full_block_has_a_key_and_a_partial_one_has_none() -> None:
    assert keys(PUBLIC, (), 2) == keys(PUBLIC, (1,), 2) == ()
    one = keys(PUBLIC, (1, 2), 2)
    assert one == keys(PUBLIC, (1, 2, 3), 2) == (link(PUBLIC, None, (1, 2)),)
    assert keys(PUBLIC, (1, 2, 3, 4), 2) == (*one, link(PUBLIC, one[0], (3, 4)))


def test_a_key_spells_all_that_stands_before_it() -> None:
    first, second, third = keys(PUBLIC, (1, 2, 3, 4, 5, 6, 7), 2)
    assert third.runs() == ((1, 2), (3, 4), (5, 6))
    assert tuple(third.path()) == (third, second, first)
    assert (first.length, second.length, third.length) == (2, 4, 6)
    assert third.parent is second
    assert chain(PUBLIC, third.runs()) is third


@pytest.mark.parametrize("known", range(4))
def test_keys_grow_with_the_text(known: int) -> None:
    text = (1, 2, 3, 4, 5, 6, 7)
    whole = keys(PUBLIC, text, 2)
    assert extend_keys(whole[:known], PUBLIC, text, 2) == whole


def test_one_difference_at_the_start_is_one_in_every_key() -> None:
    one, other = keys(PUBLIC, (0, *range(1, 16)), 4), keys(PUBLIC, (9, *range(1, 16)), 4)
    assert len({*one, *other}) == 8


# --- namespaces ----------------------------------------------------------------------------

ALIKE = [
    Namespace(adapter, salt)
    for adapter, salt in product((None, "", "a", "ab", "None", "b", "a:b", "a|b"), repeat=2)
]
"""Pairs of which many are the same when they are written one after the other, however joined."""


def test_namespaces_are_pairs() -> None:
    assert Namespace("ab", "") != Namespace("a", "b") != Namespace("", "ab")
    assert Namespace(None, "a") != Namespace("a", None)
    assert Namespace(None) != Namespace("") != Namespace("None")
    assert Namespace(None, None) == PUBLIC
    assert len({str(namespace.adapter) + str(namespace.salt) for namespace in ALIKE}) < len(ALIKE)


def test_no_two_namespaces_share_a_key() -> None:
    firsts = {keys(namespace, (1, 2, 3, 4), 2)[0] for namespace in ALIKE}
    seconds = {keys(namespace, (1, 2, 3, 4), 2)[1] for namespace in ALIKE}
    assert len(firsts) == len(seconds) == len(ALIKE) == 64
    assert firsts.isdisjoint(seconds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace("ab", "c"), Namespace("a", "bc")),
        (Namespace("abc"), Namespace(None, "abc")),
        (Namespace("None"), Namespace()),
        (Namespace(""), Namespace()),
        (Namespace("a", ""), Namespace("a")),
    ],
)
def test_nobody_is_served_from_another_namespace(one: Namespace, other: Namespace) -> None:
    """The same prompt in one, in the other, and again in each: only the later ones are hits."""
    machine = Machine(Config(20, 2, 16, 32, 4), VLLM_0_33)
    state = machine.initial()
    for name, namespace in (("a", one), ("b", other), ("c", one), ("d", other)):
        state = machine.apply(state, Submit(name, (1, 2, 3, 4, 5), 9, namespace)).state
    said = machine.apply(state, Schedule()).events
    hits = [event.hit_tokens for event in said if isinstance(event, Admitted)]
    assert hits == [0, 0, 4, 4]


# --- long ----------------------------------------------------------------------------------

LINKS = 100_000


@pytest.fixture(scope="module")
def long() -> Chain:
    """A hundred times as long as Python may recurse, and more."""
    assert sys.getrecursionlimit() * 20 < LINKS
    return chain(PUBLIC, tuple((i % 7,) for i in range(LINKS)))


def pickled(link: Chain) -> Chain:
    back = pickle.loads(pickle.dumps(link))
    assert isinstance(back, Chain)
    return back


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled], ids=lambda f: f.__name__)
def test_a_copy_of_a_long_chain_is_the_chain(again: Callable[[Chain], Chain], long: Chain) -> None:
    assert again(long) is long


def test_a_long_chain_is_printed_in_short(long: Chain) -> None:
    """Its length, and a digest of all that is in it."""
    assert repr(long).startswith(f"Chain({LINKS} tokens, ")
    assert len(repr(long)) < 50
    assert repr(chain(PUBLIC, long.runs())) == repr(long)
    twin = chain(PUBLIC, ((6,), *long.runs()[1:]))
    assert repr(twin).startswith(f"Chain({LINKS} tokens, ")
    assert repr(twin) != repr(long)


def test_a_long_chain_is_walked_and_hashed(long: Chain) -> None:
    assert sum(1 for _ in long.path()) == len(long.runs()) == long.length == LINKS
    assert {long: "found"}[chain(PUBLIC, long.runs())] == "found"


def test_what_holds_chains_is_copied_with_them() -> None:
    """A state, its pool and its index come back from a copy or a pickle as equals, with the same
    keys in them."""
    machine = Machine(Config(9, 2, 16, 16, 4), VLLM_0_33)
    state = machine.initial()
    for action in (Submit("a", (1, 2, 3, 4, 5), 9, Namespace("x", "y")), Schedule()):
        state = machine.apply(state, action).state
    assert state.running[0].keys
    for back in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert back == state
        assert hash(back) == hash(state)
        for mine, theirs in zip(back.running[0].keys, state.running[0].keys, strict=True):
            assert mine is theirs


PROMPT = 131_072
"""Tokens: 8,192 blocks of 16."""


@pytest.mark.parametrize("budget", [PROMPT, 8_192], ids=["one pass", "16 passes"])
def test_a_long_prompt_goes_through_the_machine(budget: int) -> None:
    """It comes twice, one after the other: the second time all but its last block is a hit."""
    config = Config(
        num_blocks=8_300,
        block_size=16,
        max_model_len=PROMPT + 16,
        max_num_batched_tokens=budget,
        max_num_seqs=2,
    )
    machine = Machine(config, VLLM_0_33)
    prompt: Tokens = tuple(i * i % 32_003 for i in range(PROMPT))
    state = machine.initial()
    passes: list[list[int]] = []
    stored: list[BlockStored] = []
    for name in ("first", "second"):
        state = machine.apply(state, Submit(name, prompt, 1)).state
        computed: list[int] = []
        while state.live:
            planned = machine.apply(state, Schedule())
            computed += [said.tokens for said in planned.events if isinstance(said, Scheduled)]
            stored += [said for said in planned.events if isinstance(said, BlockStored)]
            due = tuple(Output(e.id, (7,)) for e in planned.state.in_flight[0].entries if e.yields)
            state = machine.apply(planned.state, Complete(due)).state
        passes.append(computed)
    assert passes == [[budget] * (PROMPT // budget), [16]]
    assert len(stored) == PROMPT // 16 + 1
    assert stored[-1].key is stored[-2].key
    assert stored[-1].key.runs() == tuple(prompt[i : i + 16] for i in range(0, PROMPT, 16))
    assert len(state.pool.free) == 8_299
    last = state.pool.blocks[stored[-1].block].content[-1]
    assert last is not None
    assert last.length == PROMPT


# --- nothing is kept -----------------------------------------------------------------------


def known() -> int:
    gc.collect()
    return len(chains._LINKS)


def test_links_are_forgotten_with_the_last_reference() -> None:
    before = known()
    namespace = Namespace("forgotten")
    held = keys(namespace, tuple(range(40)), 4)
    assert known() == before + 10
    held = held[:3]
    assert known() == before + 3
    last = held[-1]
    del held
    assert known() == before + 3, "a link holds those before it"
    del last
    assert known() == before


def test_a_long_chain_is_forgotten_without_recursion() -> None:
    before = known()
    node: Chain | None = chain(Namespace("forgotten"), ((1,),) * LINKS)
    assert known() == before + LINKS
    node = None
    assert node is None
    assert known() == before


def test_a_machine_keeps_nothing() -> None:
    """Neither its content nor its keys outlive the last state."""
    before = known()
    machine = Machine(Config(20, 2, 32, 32, 4), VLLM_0_33)
    state = machine.initial()
    state = machine.apply(state, Submit("a", tuple(range(30)), 1, Namespace("forgotten"))).state
    state = machine.apply(state, Schedule()).state
    state = machine.apply(state, Complete((Output("a", (7,)),))).state
    assert known() == before + 15 + 30
    del state
    assert known() == before


def test_who_comes_back_has_the_same_name() -> None:
    first = repr(link(Namespace("forgotten"), None, (1, 2)))
    gc.collect()
    assert repr(link(Namespace("forgotten"), None, (1, 2))) == first
