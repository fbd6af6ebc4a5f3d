"""Stories about content, the ghost: what a forward pass leaves in the slots of a table.

Five blocks of two tokens, and a text 1 2 3 4 5. The value of a slot is the chain of single tokens
through the slots as they were read, from the namespace on.
"""

from __future__ import annotations

from functools import reduce

from servespec import pool
from servespec.chain import PUBLIC, Chain, Namespace, keys, link
from servespec.config import Config
from servespec.policy import VLLM_0_33
from servespec.pool import EMPTY, Block, Blocks, Pool

SIZE = 2
TEXT = (1, 2, 3, 4, 5)


def a_pool(taken: int) -> Pool:
    """So many blocks are held, from 1 on; block 0 is kept out."""
    free = pool.initial(Config(6, SIZE, 8, 8, 2), VLLM_0_33)
    return pool.extend(free, taken).pool


def written(there: Pool, table: Blocks, start: int, *tokens: int) -> Pool:
    return pool.write(there, SIZE, table, PUBLIC, start, tokens)


def chained(*tokens: int) -> Chain | None:
    """The value of the slot of the last of these tokens."""
    none: Chain | None = None
    return reduce(lambda before, token: link(PUBLIC, before, (token,)), tokens, none)


VALUES = tuple(chained(*TEXT[:count]) for count in range(1, 6))


def contents(there: Pool) -> list[tuple[Chain | None, ...]]:
    """Of blocks 1 to 3."""
    return [block.content for block in there.blocks[1:4]]


def test_a_slot_holds_what_was_read_before_it_and_its_token() -> None:
    """Given a table of three blocks; when a text of five tokens is written, whole or in any two
    parts, then each slot goes on from the one before, also from block to block, and what was not
    written has no slot."""
    told = [VALUES[:2], VALUES[2:4], VALUES[4:]]
    assert contents(written(a_pool(3), (1, 2, 3), 0, *TEXT)) == told
    for cut in range(1, 5):
        first = written(a_pool(3), (1, 2, 3), 0, *TEXT[:cut])
        assert contents(written(first, (1, 2, 3), cut, *TEXT[cut:])) == told
    for count in range(6):
        there = written(a_pool(3), (1, 2, 3), 0, *TEXT[:count])
        assert sum(contents(there), ()) == VALUES[:count]


def test_no_tokens_write_nothing() -> None:
    there = a_pool(1)
    assert written(there, (1,), 0) is there


def test_what_is_written_behind_a_gap_is_worth_nothing() -> None:
    """Given slots that nobody has written; when tokens are written behind them, then they have no
    value, nor has what goes on from there, and the gap remains one."""
    for start in (1, 2, 3):
        there = written(a_pool(3), (1, 2, 3), start, 7, 8)
        assert [value for content in contents(there) for value in content if value] == []
    assert contents(written(a_pool(3), (1, 2, 3), 1, 7, 8)) == [(None, None), (None,), ()]
    assert contents(written(a_pool(3), (1, 2, 3), 3, 7)) == [(), (None, None), ()]


def test_what_is_written_behind_another_namespace_is_worth_nothing() -> None:
    """Given a block that Ann's text has filled, in the table of somebody else; when that one goes
    on behind it, then what it writes has no value, nor has what follows; Ann's stays."""
    anns = pool.write(a_pool(3), SIZE, (1,), Namespace(salt="ann"), 0, TEXT[:2])
    there = written(anns, (1, 2, 3), 2, 7, 8, 9)
    assert contents(there) == [anns.blocks[1].content, (None, None), (None,)]


def test_a_text_begins_at_its_namespace_whatever_its_last_block_held() -> None:
    """Given a table whose last block has been written to; when the first token is written, then it
    goes on from nothing."""
    there = written(a_pool(2), (1, 2), 0, *TEXT[:4])
    again = written(there, (1, 2), 0, 9)
    assert contents(again)[0] == (chained(9), VALUES[1])


def test_a_slot_is_written_over() -> None:
    there = written(a_pool(1), (1,), 0, 1, 9)
    assert contents(written(there, (1,), 1, 2))[0] == VALUES[:2]


def test_what_is_let_go_without_a_name_keeps_nothing() -> None:
    """Given blocks of which the first has its name; when they are let go, then it keeps name and
    content, and the other one is as new."""
    there = written(a_pool(2), (1, 2), 0, *TEXT[:3])
    named = pool.publish(there, (1,), keys(PUBLIC, TEXT[:2], SIZE)).pool
    gone = pool.release(named, VLLM_0_33, (1, 2)).pool
    assert gone.blocks[1] == Block(0, named.blocks[1].key, VALUES[:2])
    assert gone.blocks[2] == EMPTY


def test_a_step_writes_to_a_free_block_only_if_somebody_can_find_it() -> None:
    """Given a step in flight whose request has left, after its first block was published; when the
    step writes, then that block, which can be found, has its content, and the free one has none."""
    named = pool.publish(a_pool(2), (1,), keys(PUBLIC, TEXT[:2], SIZE)).pool
    gone = pool.release(named, VLLM_0_33, (1, 2)).pool
    there = written(gone, (1, 2), 0, *TEXT[:3])
    assert contents(there) == [VALUES[:2], (), ()]
    assert there.blocks[2] == EMPTY
