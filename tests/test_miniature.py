"""Stories about the article's program in miniature: its chance, its parts at sizes that can be
followed by hand, what it asserts, and its five lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import pytest
from attrs import evolve, fields_dict

from servecheck.engines.whole import WHOLE, FastWhole, MakeWhole, SpecWhole, Whole
from servecheck.miniature import MiniatureError, lines, miniature
from servecheck.miniature.batching import (
    Arrival,
    BatchLine,
    batch_line,
    batch_lines,
    draw_stream,
)
from servecheck.miniature.chance import Rng
from servecheck.miniature.loop import Loop
from servecheck.miniature.memory import MemoryLine, admitted_at_once, memory_line
from servecheck.miniature.pool import PoolLine, hit_blocks, pool_line
from servecheck.miniature.speculation import (
    ALPHA,
    GAMMA,
    ROUNDS_ON_MACHINE,
    SpeculationLine,
    draw_accepted,
    speculation_line,
    tokens_by_count,
    tokens_by_machine,
)
from servespec.config import Config
from servespec.events import Admitted, BlockRemoved, Event, Scheduled
from servespec.machine import Machine
from servespec.plan import Plan, State
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    Batching,
    HitCap,
    Memory,
    Policy,
    Sharing,
)
from servespec.pool import Block, Blocks, Moved, Pool
from tests.broken_engines import HitStaysFree, whole

THE_ARTICLES_LINES = """\
block pool: 7 cache hits, 5 evictions, all blocks returned
static batching: 343 steps, mean latency 137.9 steps, slot utilization 0.53
continuous batching: 216 steps, mean latency 55.4 steps, slot utilization 0.84
memory: 16 sequences fit with reservation, 64 with 16-token blocks
speculative decoding: 3.370 tokens per target pass measured, 3.362 expected
"""


Results = tuple[PoolLine, BatchLine, BatchLine, MemoryLine, SpeculationLine]


@pytest.fixture(scope="module")
def results() -> Results:
    return miniature()


# --- the whole -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_the_articles_five_lines_come_out_of_each(name: str) -> None:
    assert "".join(line + "\n" for line in lines(WHOLE[name])) == THE_ARTICLES_LINES


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (whole(HitStaysFree), r"^block pool: blocks \[5, 6, 7\] have not come back"),
        (
            lambda m: fast(m, evolve(m.policy, sharing=Sharing.OFF)),
            "^block pool: 10 blocks in use, not 7",
        ),
        (
            lambda m: fast(m, evolve(m.policy, batching=Batching.STATIC)),
            "^batching: the mean latency of continuous",
        ),
        (lambda m: fast(m, evolve(m.policy, memory=Memory.RESERVED)), "^block pool: "),
    ],
    ids=["a fault", "no sharing", "static", "reserved"],
)
def test_an_engine_that_serves_otherwise_prints_no_lines(other: MakeWhole, complaint: str) -> None:
    """It is the engine that is asked, not the specification."""
    with pytest.raises(MiniatureError, match=complaint):
        list(lines(other))


def test_the_numbers_behind_the_lines(results: Results) -> None:
    pool, static, continuous, memory, speculation = results
    assert pool == PoolLine(hits=7, evictions=5)
    generated = sum(arrival.output for arrival in _the_stream())
    assert static == BatchLine("static", 343, 137.9, generated / (343 * 8))
    assert continuous == BatchLine("continuous", 216, 55.425, generated / (216 * 8))
    assert memory == MemoryLine(reserved=16, paged=64, block_size=16)
    assert speculation == SpeculationLine(200_000, ROUNDS_ON_MACHINE, 674_091 / 200_000, 3.3616)


def test_what_the_article_asserts(results: Results) -> None:
    pool, static, continuous, memory, speculation = results
    assert pool.evictions > 0
    assert continuous.steps <= static.steps
    assert continuous.mean_latency < static.mean_latency
    assert memory.paged > memory.reserved
    assert abs(speculation.measured - speculation.expected) < 0.02


# --- its chance ----------------------------------------------------------------------------


def test_the_generator_is_xorshift32() -> None:
    """The first numbers from 1 are in every table of xorshift32 with shifts 13, 17, 5."""
    rng, seen = Rng(1), []
    for _ in range(4):
        rng.next()
        seen.append(rng.state)
    assert seen == [270_369, 67_634_689, 2_647_435_461, 307_599_695]


def test_the_first_draw_by_hand() -> None:
    """9 ^ 9·2¹³ = 73,737; shifted right by 17 that is nothing; 73,737 ^ 73,737·2⁵ = 2,433,321."""
    rng = Rng()
    assert rng.next() == 2_433_321 / 2**32
    assert rng.state == 2_433_321


def test_both_ends_of_a_range_are_drawn() -> None:
    rng = Rng()
    assert {rng.between(3, 6) for _ in range(100)} == {3, 4, 5, 6}


def test_the_first_draws_are_those_of_the_articles_program() -> None:
    """Its system prompt, as its C++ program draws it."""
    assert Rng().tokens(12, 0, 99) == (0, 14, 23, 61, 52, 46, 86, 79, 71, 86, 51, 28)


def test_the_stream_draws_gap_output_prompt() -> None:
    rng = Rng()
    first, second = draw_stream(Rng(), count=2)
    gap = rng.between(0, 6)
    output = rng.between(8, 64)
    assert first == Arrival(gap, rng.between(16, 128), output)
    gap += rng.between(0, 6)
    output = rng.between(8, 64)
    assert second == Arrival(gap, rng.between(16, 128), output)


# --- block pool ----------------------------------------------------------------------------


def test_two_prompts_of_one_pass_share_what_they_begin_with() -> None:
    """Blocks of 2: both begin with 1 2 3 4, and the second finds these blocks in the pass that
    takes them for the first."""
    loop = _loop(MINIATURE, num_blocks=8, block_size=2, max_num_seqs=2)
    loop.submit("first", (1, 2, 3, 4, 5), max_tokens=1)
    loop.submit("second", (1, 2, 3, 4, 6), max_tokens=1)
    said = loop.schedule()
    assert [request.table for request in loop.state.running] == [(0, 1, 2), (0, 1, 3)]
    assert loop.held == {0, 1, 2, 3}
    assert hit_blocks(said) == 2
    loop.complete()
    loop.check_returned("story")
    # The first lets go of what only it held, 2; the second of its table, last block first.
    assert loop.state.pool.free == (4, 5, 6, 7, 2, 3, 1, 0)


def test_a_block_is_a_hit_even_where_its_last_token_is_computed_again() -> None:
    """A prompt of two whole blocks that comes again shares both, and computes its last token."""
    loop = _loop(MINIATURE, num_blocks=4, block_size=2, max_num_seqs=1)
    hits = []
    for name in ("first", "again"):
        loop.submit(name, (1, 2, 3, 4), max_tokens=1)
        hits.append(hit_blocks(loop.schedule()))
        loop.complete()
    assert hits == [0, 2]


def test_new_content_evicts_what_was_let_go() -> None:
    """A pool of 2 blocks of 2, both with a key: each block of the next prompt evicts one."""
    loop = _loop(MINIATURE, num_blocks=2, block_size=2, max_num_seqs=1)
    loop.submit("first", (1, 2, 3, 4), max_tokens=1)
    assert not [event for event in loop.schedule() if isinstance(event, BlockRemoved)]
    loop.complete()
    loop.submit("second", (5, 6, 7, 8), max_tokens=1)
    evicted = [event.block for event in loop.schedule() if isinstance(event, BlockRemoved)]
    assert evicted == [1, 0]


def test_a_block_that_does_not_come_back_is_named() -> None:
    loop = _loop(MINIATURE, num_blocks=4, block_size=2, max_num_seqs=1)
    loop.submit("holder", (1, 2, 3), max_tokens=1)
    loop.schedule()
    with pytest.raises(MiniatureError, match=r"^story: blocks \[0, 1\] have not come back"):
        loop.check_returned("story")
    loop.complete()
    loop.check_returned("story")


@pytest.mark.parametrize(
    "free", [(1, 2, 3), (0, 1, 2, 2), (0, 1, 2, 3, 3)], ids=["lost", "another twice", "one twice"]
)
def test_a_free_queue_that_is_not_whole_is_seen(free: tuple[int, ...]) -> None:
    loop = _loop(MINIATURE, num_blocks=4, block_size=2, max_num_seqs=1)
    put(loop, evolve(loop.state.pool, free=free))
    with pytest.raises(MiniatureError, match="have not come back"):
        loop.check_returned("story")


def test_a_free_block_that_is_held_is_seen() -> None:
    loop = _loop(MINIATURE, num_blocks=2, block_size=2, max_num_seqs=1)
    pool = evolve(loop.state.pool, blocks=(Block(), Block(ref_count=1)))
    put(loop, pool)
    with pytest.raises(MiniatureError, match=r"blocks \[1\] have not come back"):
        loop.check_returned("story")


# --- batching ------------------------------------------------------------------------------


def test_a_slot_is_refilled_at_once_or_when_the_batch_is_through() -> None:
    """Two slots, three requests of 1, 3 and 1 tokens, all there at the start.

    step        1   2   3   4
    static      ab  b   b   c       ends 1, 3, 4
    continuous  ab  bc  b           ends 1, 3, 2
    """
    stream = [Arrival(0, 16, output) for output in (1, 3, 1)]
    assert batch_line(stream, STATIC, slots=2) == BatchLine("static", 4, 8 / 3, 5 / 8)
    assert batch_line(stream, MINIATURE, slots=2) == BatchLine("continuous", 3, 6 / 3, 5 / 6)


@pytest.mark.parametrize("policy", [STATIC, MINIATURE])
def test_idle_steps_count(policy: Policy) -> None:
    """A request that arrives before the sixth step, and takes two: seven steps, latency two."""
    line = batch_line([Arrival(5, 16, 2)], policy, slots=1)
    assert (line.steps, line.mean_latency, line.utilization) == (7, 2, 2 / 7)


def test_who_arrives_while_a_static_batch_runs_waits_outside() -> None:
    """Two slots, one taken for three steps: the other stays empty. Latencies 3 and 4 - 1."""
    stream = [Arrival(0, 16, 3), Arrival(1, 16, 1)]
    assert batch_line(stream, STATIC, slots=2) == BatchLine("static", 4, 3, 4 / 8)
    assert batch_line(stream, MINIATURE, slots=2) == BatchLine("continuous", 3, 2, 4 / 6)


def test_a_scheduler_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request at the start, of 3 tokens: after 3 steps it must be through."""

    def idle(config: Config, policy: Policy, state: State) -> tuple[State, tuple[Event, ...]]:
        return evolve(state, in_flight=(Plan(),)), ()

    monkeypatch.setattr("servespec.machine.schedule", idle)
    with pytest.raises(MiniatureError, match="the stream has not ended after 3 steps"):
        batch_line([Arrival(0, 16, 3)], MINIATURE)


def test_no_prompt_of_the_stream_shares_blocks() -> None:
    """With and without sharing the stream runs the same: only the slots decide."""
    alone = evolve(MINIATURE, sharing=Sharing.OFF)
    assert batch_line(_the_stream(), alone) == batch_line(_the_stream(), MINIATURE)


# --- memory --------------------------------------------------------------------------------


def test_a_reservation_takes_the_greatest_length_and_a_page_what_is_there() -> None:
    """64 tokens in blocks of 16, at most 32 a sequence: sequences of 17, 10 and 16 tokens take 2,
    1 and 1 blocks, or 2 each."""
    lengths = (17, 10, 16)
    assert admitted_at_once(lengths, MINIATURE, budget=64, max_length=32) == 3
    assert admitted_at_once(lengths, RESERVED, budget=64, max_length=32) == 2


def test_the_first_that_does_not_fit_ends_the_count() -> None:
    """Four blocks: 3 for the first, the second would need 2, and the third is not tried."""
    assert admitted_at_once((48, 17, 1), MINIATURE, budget=64, max_length=64) == 1


def test_no_more_sequences_fit_than_there_are() -> None:
    assert admitted_at_once((1, 1), RESERVED, budget=64, max_length=16) == 2


# --- speculative decoding ------------------------------------------------------------------


def test_the_fast_path_is_the_machine() -> None:
    """Round by round, on the rounds that the machine runs: the same tokens, of the same draws."""
    machine, count = _the_last_part(), _the_last_part()
    by_machine = list(tokens_by_machine(machine, ROUNDS_ON_MACHINE))
    assert by_machine == list(tokens_by_count(count, ROUNDS_ON_MACHINE))
    assert machine == count
    assert set(by_machine) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", range(1, 30))
def test_the_fast_path_is_the_machine_from_any_seed(seed: int) -> None:
    machine, count = Rng(seed), Rng(seed)
    together = zip(tokens_by_machine(machine, 20), tokens_by_count(count, 20), strict=True)
    for by_machine, by_count in together:
        assert by_machine == by_count
        assert machine == count


@pytest.mark.parametrize("on_machine", [0, 1, 500])
def test_it_does_not_matter_how_many_rounds_the_machine_runs(on_machine: int) -> None:
    line = speculation_line(Rng(7), rounds=20_000, on_machine=on_machine)
    assert line == evolve(
        speculation_line(Rng(7), rounds=20_000, on_machine=100), on_machine=on_machine
    )


def test_a_round_draws_up_to_its_first_rejection() -> None:
    """So a round with k accepted drafts draws k + 1 numbers, and one with all γ draws γ."""
    for seed in range(1, 200):
        rng, replayed = Rng(seed), Rng(seed)
        accepted = draw_accepted(rng)
        draws = list(islice(iter(replayed.next, None), min(accepted + 1, GAMMA)))
        assert [draw < ALPHA for draw in draws] == ([True] * accepted + [False])[:GAMMA]
        assert rng == replayed


# --- what does not hold is named -----------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (
            lambda: pool_line(Rng(), evolve(MINIATURE, sharing=Sharing.OFF)),
            "block pool: 10 blocks in use, not 7",
        ),
        (
            lambda: batch_lines(Rng(), static=MINIATURE, continuous=STATIC),
            "batching: continuous batching ends later",
        ),
        (
            lambda: batch_lines(Rng(), static=MINIATURE, continuous=MINIATURE),
            "batching: the mean latency of continuous batching is no lower",
        ),
        (
            lambda: memory_line(Rng(), reserved=MINIATURE, paged=RESERVED),
            "memory: 16 sequences fit in pages, 64 with reservation",
        ),
        (
            lambda: speculation_line(Rng(), rounds=1, on_machine=1),
            "speculative decoding: 5.000 tokens, not 3.362",
        ),
        (
            lambda: admitted_at_once((100,), MINIATURE, budget=64),
            "the loop: says no: [Refused(subject='0', reason=<Reason.IMPOSSIBLE: "
            "'it can never fit'>)]",
        ),
    ],
    ids=["sharing", "steps", "latency", "memory", "speculation", "refused"],
)
def test_an_assertion_that_does_not_hold_is_named(
    run: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(MiniatureError) as raised:
        run()
    assert str(raised.value) == complaint


@pytest.mark.parametrize(
    "run",
    [
        lambda: pool_line(Rng()),
        lambda: batch_line([Arrival(0, 16, 1)], MINIATURE),
        lambda: list(tokens_by_machine(Rng(), 1)),
    ],
    ids=["pool", "batching", "speculation"],
)
def test_a_pool_that_leaks_is_noticed(
    run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leak(pool: Pool, policy: Policy, table: Sequence[int]) -> Moved:
        return Moved(pool)

    monkeypatch.setattr("servespec.pool.release", leak)
    with pytest.raises(MiniatureError, match="have not come back"):
        run()


@pytest.mark.parametrize(
    ("saying", "complaint"),
    [
        (lambda said: _admitting(said, lambda table: table[:4]), "not of 5 and 5"),
        (lambda said: _admitting(said, lambda table: table[::-1]), "share no prefix of 3 blocks"),
        (
            lambda said: [e for e in said if not isinstance(e, Scheduled)],
            "0 hits of two prompts, not 3",
        ),
        (
            lambda said: [e for e in said if getattr(e, "id", "") != "first again"],
            "0 hits of a known prompt, not 4",
        ),
        (lambda said: [e for e in said if not isinstance(e, BlockRemoved)], "nothing is evicted"),
    ],
    ids=["short tables", "turned tables", "no hits", "no hits again", "no evictions"],
)
def test_what_the_machine_says_is_held_against_the_article(
    saying: Callable[[Iterable[Event]], Iterable[Event]],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The states are right and what is said of them is not."""
    schedule = Loop.schedule
    monkeypatch.setattr(Loop, "schedule", lambda loop: tuple(saying(schedule(loop))))
    with pytest.raises(MiniatureError, match=complaint):
        pool_line(Rng())


def test_the_hit_cap_makes_no_difference_to_the_article() -> None:
    """None of its prompts that comes again ends with a full block."""
    capped = evolve(MINIATURE, hit_cap=HitCap.LAST_TOKEN)
    assert pool_line(Rng(), capped) == pool_line(Rng(), MINIATURE)


def test_results_are_plain_numbers(results: Results) -> None:
    """For whoever writes them as JSON."""
    for result in results:
        values = [getattr(result, name) for name in fields_dict(type(result))]
        assert all(type(value) in (int, float, str) for value in values)


# --- helpers -------------------------------------------------------------------------------


def fast(machine: Machine, policy: Policy) -> Whole:
    """The fast engine with other choices than it was asked for."""
    return FastWhole(Machine(machine.config, policy))


def put(loop: Loop, pool: Pool) -> None:
    """The specification that is driven has this pool from now on."""
    assert isinstance(loop.serving, SpecWhole)
    loop.serving.state = evolve(loop.state, pool=pool)


def _loop(policy: Policy, num_blocks: int, block_size: int, max_num_seqs: int) -> Loop:
    slots = num_blocks * block_size
    config = Config(num_blocks, block_size, slots + 1, 100, max_num_seqs)
    return Loop(Machine(config, policy))


def _admitting(said: Iterable[Event], change: Callable[[Blocks], Blocks]) -> list[Event]:
    """The events, with other block tables for those admitted."""
    return [evolve(e, blocks=change(e.blocks)) if isinstance(e, Admitted) else e for e in said]


def _the_stream() -> tuple[Arrival, ...]:
    rng = Rng()
    pool_line(rng)
    return draw_stream(rng)


def _the_last_part() -> Rng:
    """The generator where speculative decoding begins."""
    rng = Rng()
    pool_line(rng)
    batch_lines(rng)
    memory_line(rng)
    return rng
