"""Stories about the block manager: texts that begin, grow and end, when all else is decided."""

from __future__ import annotations

from servecheck.engines.fast.manager import BlockManager
from servespec.chain import Namespace
from servespec.config import Config
from servespec.policy import VLLM_0_33

SIZES = Config(
    num_blocks=6, block_size=2, max_model_len=16, max_num_batched_tokens=16, max_num_seqs=4
)
"""Five blocks of two tokens: block 0 is kept out."""


def test_a_text_holds_blocks_and_the_next_one_shares_what_is_full() -> None:
    """Given a text of five tokens in three blocks; when the same text begins again, then its two
    full blocks are shared and one is taken; there is no room for a third text until one ends."""
    manager = BlockManager(SIZES, VLLM_0_33)
    assert manager.begin("a", (1, 2, 3, 4, 5)) == 0
    assert manager.pool.free == 2
    assert manager.begin("b", (1, 2, 3, 4, 5)) == 4
    assert manager.texts["b"].table[:2] == manager.texts["a"].table[:2]
    assert manager.pool.free == 1
    assert manager.begin("c", (7, 8, 9)) is None
    assert manager.begin("c", (7, 8)) == 0
    assert manager.pool.free == 0
    manager.end("c")
    assert manager.pool.free == 1
    manager.end("a")
    assert manager.pool.free == 2, "two of its blocks are shared"
    manager.end("b")
    assert manager.pool.free == 5


def test_a_text_that_was_refused_leaves_nothing() -> None:
    """Given one idle block; when a text wants two, then it is refused, and the tree of texts keeps
    no name of it."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", tuple(range(8)))
    before = manager.pool.queue(), dict(manager.pool.trie.roots[Namespace()].children)
    assert manager.begin("b", (8, 8, 8)) is None
    assert (manager.pool.queue(), dict(manager.pool.trie.roots[Namespace()].children)) == before
    assert "b" not in manager.texts


def test_an_idle_hit_is_counted_as_taken() -> None:
    """Given a text that has ended, whose full block lies idle among five; when a text of ten tokens
    begins with it, then all five blocks are held; one token more would be one too many."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1, 2, 3))
    manager.end("a")
    assert manager.begin("b", (1, 2, *range(9))) is None
    assert manager.begin("b", (1, 2, *range(8))) == 2
    assert manager.pool.free == 0


def test_a_text_is_never_found_to_its_last_token() -> None:
    """Given a text of two full blocks; when it begins again, then one of them is a hit: the last
    token is always computed."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1, 2, 3, 4))
    assert manager.begin("b", (1, 2, 3, 4)) == 2


def test_a_text_that_grows_takes_a_block_when_its_last_one_is_full() -> None:
    """Given a text of three tokens; when it grows by one, its second block is full and can be
    found; by the next one it takes a third."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1, 2, 3))
    assert manager.grow("a", 4)
    assert (len(manager.texts["a"].table), manager.pool.free) == (2, 3)
    assert manager.begin("b", (1, 2, 3, 4, 5)) == 4
    assert manager.pool.free == 2
    assert manager.grow("a", 6)
    assert manager.grow("a", 7)
    assert (len(manager.texts["a"].table), manager.pool.free) == (3, 1)
    assert manager.begin("c", (1, 2, 3, 4, 6, 7)) == 4
    manager.end("b")
    manager.end("c")
    assert manager.begin("c", (1, 2, 3, 4, 6, 7, 8)) == 6


def test_without_room_a_text_does_not_grow() -> None:
    """Given a text that holds all blocks, the last one half full; it grows by one token and then
    stops, and nothing has changed."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", tuple(range(9)))
    assert manager.grow("a", 9)
    table, tokens = list(manager.texts["a"].table), list(manager.texts["a"].tokens)
    assert not manager.grow("a", 10)
    assert (manager.texts["a"].table, manager.texts["a"].tokens) == (table, tokens)


def test_namespaces_share_nothing() -> None:
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1, 2, 3), Namespace(salt="s"))
    assert manager.begin("b", (1, 2, 3)) == 0
    manager.grow("a", 4)
    assert manager.begin("c", (1, 2, 3, 4, 5), Namespace(salt="s")) == 4


def test_a_first_block_that_fills_up_later_is_found_in_its_own_namespace() -> None:
    """Given a text of one token with a salt; when it grows into a full block, then the block is
    found with the salt, and not without."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1,), Namespace(salt="s"))
    manager.grow("a", 2)
    assert manager.begin("b", (1, 2, 3)) == 0
    assert manager.begin("c", (1, 2, 3), Namespace(salt="s")) == 2


def test_evictions_are_counted_once() -> None:
    """Given a full block that lies idle; when another text takes all five blocks, then one block
    has lost its name; asked again, none has."""
    manager = BlockManager(SIZES, VLLM_0_33)
    manager.begin("a", (1, 2, 3))
    manager.end("a")
    assert manager.evictions() == 0
    manager.begin("b", tuple(range(10, 20)))
    assert manager.evictions() == 1
    assert manager.evictions() == 0
