"""What `unsound` says of an engine whose representation contradicts itself, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.refine import unsound
from servecheck.engines.fast.text import Text
from servecheck.engines.fast.trie import Run
from servecheck.lockstep.compare import Difference
from servespec.actions import Schedule, Submit
from servespec.chain import PUBLIC, Namespace
from servespec.config import Config
from servespec.policy import VLLM_0_33

SIZES = Config(
    num_blocks=10, block_size=2, max_model_len=16, max_num_batched_tokens=16, max_num_seqs=4
)
Spoil = Callable[[FastEngine], Difference]


def served() -> FastEngine:
    """Two texts that share their first block and go on alone: three runs. The first text holds
    blocks 1, 2, 3, the second one 1, 4, 5, 6; 7, 8, 9 are free."""
    engine = FastEngine(SIZES, VLLM_0_33)
    engine.apply(Submit("a", (1, 2, 3, 4, 5), 4))
    engine.apply(Submit("b", (1, 2, 6, 7, 8, 9, 3), 4))
    engine.apply(Schedule())
    assert [r.table for r in engine.running] == [[1, 2, 3], [1, 4, 5, 6]]
    return engine


def runs(engine: FastEngine) -> tuple[Run, Run, Run]:
    """The shared run, the rest of the first text and that of the second."""
    front = engine.pool.trie.roots[PUBLIC].children[1, 2]
    return front, front.children[3, 4], front.children[6, 7]


def a_block_too_many_is_counted(engine: FastEngine) -> Difference:
    engine.pool.free += 1
    return Difference("free blocks counted", 3, 4)


def a_link_backwards_is_wrong(engine: FastEngine) -> Difference:
    engine.pool.before[9] = 7
    return Difference("free queue backwards", [9, 8, 7], [9, 7])


def somebody_ends_where_nobody_does(engine: FastEngine) -> Difference:
    runs(engine)[0].ends = 1
    return Difference("requests that end with a run", 0, 1)


def nobody_ends_where_somebody_does(engine: FastEngine) -> Difference:
    runs(engine)[2].ends = 0
    return Difference("requests that end with a run", 1, 0)


def copies_are_none(engine: FastEngine) -> Difference:
    runs(engine)[1].others = {}
    return Difference("copies of a run", None, {})


def a_root_is_left(engine: FastEngine) -> Difference:
    other = Namespace(salt="s")
    engine.pool.trie.roots[other] = Run(None, (), Text(None, 0, other, 2, []), 0, [])
    return Difference("a root that nothing needs", "gone", other)


def a_root_has_blocks(engine: FastEngine) -> Difference:
    engine.pool.trie.roots[PUBLIC].blocks = [-1]
    return Difference("a root that nothing needs", "gone", PUBLIC)


def a_run_has_another_key(engine: FastEngine) -> Difference:
    front, first, _ = runs(engine)
    front.children[9, 9] = front.children.pop((3, 4))
    first.key = (9, 9)
    return Difference("first block of a run", (9, 9), (3, 4))


def a_run_stands_under_another_key(engine: FastEngine) -> Difference:
    front = runs(engine)[0]
    front.children[9, 9] = front.children.pop((3, 4))
    return Difference("first block of a run", (3, 4), (3, 4))


def a_text_is_shorter_than_its_run(engine: FastEngine) -> Difference:
    runs(engine)[2].text.tokens.pop()
    return Difference("tokens of a run", 4, 3)


def places_are_kept_for_nobody(engine: FastEngine) -> Difference:
    front = runs(engine)[0]
    text = Text(front.text, front.stop, PUBLIC, 2, [9, 9])
    front.children[9, 9] = Run(front, (9, 9), text, 0, [-1])
    return Difference("places that nothing needs", 0, 1)


def a_block_has_lost_its_name(engine: FastEngine) -> Difference:
    engine.pool.trie.carried[4] = None
    return Difference("name of block 4", (runs(engine)[2], 0), None)


def a_block_has_the_name_of_another_place(engine: FastEngine) -> Difference:
    engine.pool.trie.places[4] = 1
    return Difference("name of block 4", (runs(engine)[2], 0), (runs(engine)[2], 1))


def a_text_has_more_names_than_blocks(engine: FastEngine) -> Difference:
    engine.requests["a"].names.count += 1
    return Difference("full blocks of a text", 3, 2)


SPOILS: tuple[Spoil, ...] = (
    a_block_too_many_is_counted,
    a_link_backwards_is_wrong,
    somebody_ends_where_nobody_does,
    nobody_ends_where_somebody_does,
    copies_are_none,
    a_root_is_left,
    a_root_has_blocks,
    a_run_has_another_key,
    a_run_stands_under_another_key,
    a_text_is_shorter_than_its_run,
    places_are_kept_for_nobody,
    a_block_has_lost_its_name,
    a_block_has_the_name_of_another_place,
    a_text_has_more_names_than_blocks,
)


def test_an_engine_that_serves_is_sound() -> None:
    assert list(unsound(served())) == []


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_what_contradicts_itself_is_told(spoil: Spoil) -> None:
    engine = served()
    expected = spoil(engine)
    assert list(unsound(engine)) == [expected]
