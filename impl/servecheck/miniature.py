"""The article's serving loop in miniature: its five lines, out of the one machine.

Theory of operation. "Serving Language Models from Scratch" ends with a program that simulates a
block pool, two batching policies, two ways to hold memory and speculative decoding, each with
code of its own. Here nothing is simulated anew: the profiles MINIATURE, STATIC and RESERVED make
a `Machine`, a `Loop` drives it, or the fast engine in its place, and every number is a fold over
the events and states that come out. What is the article's own is its chance: the xorshift32 stream
that starts at 9, and the order in which the parts draw from it. So the parts run in the article's
order, on one `Rng`.

    Rng ──▶ prompts, stream, lengths, acceptances ──▶ actions ──▶ Whole ──▶ events ──▶ a line

One part is too long for the machine: of 200,000 speculative rounds the first 2,000 are its own,
the rest counts `accepted + 1` tokens a round, which is what those 2,000 rounds come to. What the
article's program asserts is asserted here; what does not hold raises `MiniatureError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from attrs import define, field, frozen

from servecheck.engines.whole import MakeWhole, SpecWhole, Whole
from servespec.actions import Submit
from servespec.chain import Tokens
from servespec.config import Config, blocks_for
from servespec.events import Admitted, BlockRemoved, Delivered, Event, Finished, Refused, Scheduled
from servespec.machine import Abort, Action, Complete, Machine, Output, Schedule
from servespec.plan import State
from servespec.policy import MINIATURE, RESERVED, STATIC, Policy
from servespec.theory.speculation import expected_tokens

SAMPLED = 1_000
"""What the model answers whenever it is asked. No prompt holds it: the article's tokens are < 200,
and the other prompts consist of their number."""

SLOTS = 8
"""Requests that run at once while batching is compared."""
BLOCK_SIZE = 16
"""Tokens in a block, except in the first part, where the article takes 4."""
ALPHA = Fraction(4, 5)
"""α, the chance that a draft is accepted, given that those before it were."""
CHANCE = float(ALPHA)
GAMMA = 4
"""γ, drafts a round."""
ROUNDS = 200_000
"""Rounds of speculative decoding; the first of them go through the machine."""
ROUNDS_ON_MACHINE = 2_000
TOLERANCE = 0.02
"""How far the measured tokens per target pass may be from the expected, in tokens."""


@define(eq=False)
class MiniatureError(Exception):
    """Something that the article's program asserts does not hold of the machine."""

    part: str
    what: str

    def __str__(self) -> str:
        return f"{self.part}: {self.what}"


def hold(condition: bool, part: str, what: str) -> None:
    """One of the article's assertions; `what` says what is wrong if `condition` does not hold."""
    if not condition:
        raise MiniatureError(part, what)


# --- the article's chance ------------------------------------------------------------------


@define
class Rng:
    """xorshift32 (Marsaglia, 2003). All else of the run follows from the order of the draws."""

    state: int = 9

    def next(self) -> float:
        """A number in [0, 1), of 32 bits."""
        x = self.state
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        self.state = x
        return x / 0x1_0000_0000

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.next() * (high - low + 1))

    def tokens(self, count: int, low: int, high: int) -> Tokens:
        return tuple(self.between(low, high) for _ in range(count))


# --- the results, and the lines that the article prints of them ----------------------------


@frozen
class PoolLine:
    hits: int
    """Blocks that were shared instead of taken."""
    evictions: int

    def line(self) -> str:
        return (
            f"block pool: {self.hits} cache hits, {self.evictions} evictions, all blocks returned"
        )


@frozen
class BatchLine:
    batching: str
    steps: int
    """Idle steps included."""
    mean_latency: float
    """Steps from arrival to the end of the step that finishes, per request."""
    utilization: float
    """Tokens generated per slot and step."""

    def line(self) -> str:
        return (
            f"{self.batching} batching: {self.steps} steps, mean latency {self.mean_latency:.1f} "
            f"steps, slot utilization {self.utilization:.2f}"
        )


@frozen
class MemoryLine:
    reserved: int
    """Sequences that fit if each reserves the greatest length."""
    paged: int
    block_size: int

    def line(self) -> str:
        return (
            f"memory: {self.reserved} sequences fit with reservation, "
            f"{self.paged} with {self.block_size}-token blocks"
        )


@frozen
class SpeculationLine:
    rounds: int
    on_machine: int
    """Rounds, the first ones, that went through the machine."""
    measured: float
    """Tokens per target pass."""
    expected: float

    def line(self) -> str:
        return (
            f"speculative decoding: {self.measured:.3f} tokens per target pass measured, "
            f"{self.expected:.3f} expected"
        )


Line = PoolLine | BatchLine | MemoryLine | SpeculationLine


# --- driving the machine -------------------------------------------------------------------


@define
class Loop:
    """A serving loop with these sizes and choices: the machine itself, or what `make` makes of it.
    Each verb returns what is said to it."""

    machine: Machine
    make: MakeWhole = SpecWhole
    serving: Whole = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.serving = self.make(self.machine)

    @property
    def state(self) -> State:
        return self.serving.state

    def do(self, action: Action) -> tuple[Event, ...]:
        events = self.serving.apply(action)
        # A request turned away would only make the averages better.
        refused = [event for event in events if isinstance(event, Refused)]
        hold(not refused, "the loop", f"says no: {refused}")
        return events

    def submit(self, name: str, prompt: Tokens, max_tokens: int) -> tuple[Event, ...]:
        return self.do(Submit(name, prompt, max_tokens))

    def schedule(self) -> tuple[Event, ...]:
        return self.do(Schedule())

    def complete(self) -> tuple[Event, ...]:
        """The pass has run and sampled for everybody in it: none of the profiles cuts prompts."""
        plan = self.state.in_flight[0]
        return self.do(Complete(tuple(Output(entry.id, (SAMPLED,)) for entry in plan.entries)))

    @property
    def held(self) -> frozenset[int]:
        """Blocks that a table holds."""
        return frozenset(b for b, block in enumerate(self.state.pool.blocks) if block.ref_count)

    def check_returned(self, part: str) -> None:
        """All blocks have come back: each stands in the free queue, once, and no table holds it."""
        free = self.state.pool.free
        whole = list(range(self.machine.policy.first_block, self.machine.config.num_blocks))
        away = sorted(self.held.union(set(whole).difference(free)))
        back = sorted(free) == whole and not away
        hold(back, part, f"blocks {away} have not come back, the free queue is {free}")


def _distinct(number: int, length: int) -> Tokens:
    """A prompt that shares no block with that of another number."""
    return (number,) * length


# --- 1. the block pool ---------------------------------------------------------------------


def pool_line(rng: Rng, policy: Policy = MINIATURE, make: MakeWhole = SpecWhole) -> PoolLine:
    """16 blocks of 4: two prompts with the same first 12 tokens, the first of them again, then
    16 blocks' worth of new content.

    Raises:
        MiniatureError: hits, blocks in use or blocks returned are not what the article asserts.
    """
    part = "block pool"
    system = rng.tokens(12, 0, 99)
    first, second = system + rng.tokens(7, 0, 99), system + rng.tokens(5, 0, 99)
    churn = {f"churn {number}": rng.tokens(16, 100, 199) for number in range(4)}
    config = Config(
        num_blocks=16, block_size=4, max_model_len=64, max_num_batched_tokens=64, max_num_seqs=4
    )
    loop = Loop(Machine(config, policy), make)

    both = _served_at_once(loop, {"first": first, "second": second}, held=7)
    tables = [event.blocks for event in both if isinstance(event, Admitted)]
    hold([len(table) for table in tables] == [5, 5], part, f"tables {tables}, not of 5 and 5")
    hold(tables[0][:3] == tables[1][:3], part, f"tables {tables} share no prefix of 3 blocks")
    hold(hit_blocks(both) == 3, part, f"{hit_blocks(both)} hits of two prompts, not 3")

    again = _served_at_once(loop, {"first again": first}, held=5)
    hold(hit_blocks(again) == 4, part, f"{hit_blocks(again)} hits of a known prompt, not 4")

    full = _served_at_once(loop, churn, held=16)
    said = both + again + full
    evictions = sum(isinstance(event, BlockRemoved) for event in said)
    hold(evictions > 0, part, "nothing is evicted")
    return PoolLine(hit_blocks(said), evictions)


def _served_at_once(loop: Loop, prompts: dict[str, Tokens], held: int) -> tuple[Event, ...]:
    """Admit all the prompts in one pass, in which `held` blocks are in use, and let all of them
    finish with it. The one token that a request must ask for is sampled and never computed, so a
    prompt takes the blocks that the article's `allocate` takes, and `release` follows."""
    for name, prompt in prompts.items():
        loop.submit(name, prompt, max_tokens=1)
    said = loop.schedule()
    hold(len(loop.held) == held, "block pool", f"{len(loop.held)} blocks in use, not {held}")
    said += loop.complete()
    loop.check_returned("block pool")
    return said


def hit_blocks(events: Iterable[Event]) -> int:
    """Blocks that admissions shared: those of the table that were not taken for it. What an
    admission takes is said by the event behind it. (`hit_tokens` does not tell: a prompt that is
    cached to its last token is one token short of its blocks, for that one is computed again.)"""
    return sum(
        len(admitted.blocks) - len(scheduled.new_blocks)
        for admitted, scheduled in pairwise(events)
        if isinstance(admitted, Admitted) and isinstance(scheduled, Scheduled)
    )


# --- 2. batching ---------------------------------------------------------------------------


@frozen
class Arrival:
    """A request of the stream: the step that it arrives before, and its sizes in tokens."""

    step: int
    prompt: int
    output: int


def draw_stream(rng: Rng, count: int = 40) -> tuple[Arrival, ...]:
    """The article's stream, in order of arrival."""
    stream: list[Arrival] = []
    clock = 0
    for _ in range(count):
        clock += rng.between(0, 6)
        output = rng.between(8, 64)  # drawn before the prompt
        stream.append(Arrival(clock, rng.between(16, 128), output))
    return tuple(stream)


def batch_line(
    stream: Sequence[Arrival], policy: Policy, slots: int = SLOTS, make: MakeWhole = SpecWhole
) -> BatchLine:
    """Run a stream, in order of arrival, through `slots` slots.

    The article prefills for nothing, and has no memory: so a pass has tokens for all prompts at
    once, and the pool blocks for all slots.
    """
    longest = max(arrival.prompt + arrival.output for arrival in stream)
    config = Config(
        num_blocks=slots * blocks_for(longest, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_batched_tokens=slots * longest,
        max_num_seqs=slots,
    )
    loop = Loop(Machine(config, policy), make)
    # Until the last arrival steps may be idle; from then on each yields a token.
    limit = stream[-1].step + sum(arrival.output for arrival in stream)
    due = deque(enumerate(stream))
    steps: list[tuple[Event, ...]] = []
    while due or loop.state.live:
        hold(len(steps) < limit, "batching", f"the stream has not ended after {len(steps)} steps")
        while due and due[0][1].step <= len(steps):
            number, arrival = due.popleft()
            loop.submit(str(number), _distinct(number, arrival.prompt), arrival.output)
        steps.append(loop.schedule() + loop.complete())
    loop.check_returned("batching")
    ends = {
        event.id: step
        for step, said in enumerate(steps, 1)
        for event in said
        if isinstance(event, Finished)
    }
    latency = sum(ends[str(number)] - arrival.step for number, arrival in enumerate(stream))
    generated = sum(delivered(said) for said in steps)
    return BatchLine(
        policy.batching.value,
        len(steps),
        latency / len(stream),
        generated / (len(steps) * slots),
    )


def delivered(events: Iterable[Event]) -> int:
    """Tokens that requests got."""
    return sum(len(event.tokens) for event in events if isinstance(event, Delivered))


def batch_lines(
    rng: Rng,
    static: Policy = STATIC,
    continuous: Policy = MINIATURE,
    make: MakeWhole = SpecWhole,
) -> tuple[BatchLine, BatchLine]:
    """The same 40 requests under both policies.

    Raises:
        MiniatureError: continuous batching ends later, or its mean latency is no lower.
    """
    stream = draw_stream(rng)
    fixed = batch_line(stream, static, make=make)
    rolling = batch_line(stream, continuous, make=make)
    hold(rolling.steps <= fixed.steps, "batching", "continuous batching ends later")
    lower = rolling.mean_latency < fixed.mean_latency
    hold(lower, "batching", "the mean latency of continuous batching is no lower")
    return fixed, rolling


# --- 3. memory -----------------------------------------------------------------------------


def admitted_at_once(
    lengths: Sequence[int],
    policy: Policy,
    budget: int = 32_768,
    max_length: int = 2048,
    block_size: int = BLOCK_SIZE,
    make: MakeWhole = SpecWhole,
) -> int:
    """How many sequences, in order, memory for `budget` tokens admits in one pass.

    The budget of the pass is no bound: all sequences could be computed in it.
    """
    config = Config(
        num_blocks=budget // block_size,
        block_size=block_size,
        max_model_len=max_length,
        max_num_batched_tokens=max(max_length, sum(lengths)),
        max_num_seqs=len(lengths),
    )
    loop = Loop(Machine(config, policy), make)
    for number, length in enumerate(lengths):
        loop.submit(str(number), _distinct(number, length), max_tokens=1)
    return sum(isinstance(event, Admitted) for event in loop.schedule())


def memory_line(
    rng: Rng,
    reserved: Policy = RESERVED,
    paged: Policy = MINIATURE,
    make: MakeWhole = SpecWhole,
) -> MemoryLine:
    """64 sequences of 50 to 500 tokens in memory for 32,768.

    Raises:
        MiniatureError: pages hold no more sequences than reservations.
    """
    # The article stops drawing at the first sequence that does not fit. With its seed all fit.
    lengths = [rng.between(50, 500) for _ in range(64)]
    line = MemoryLine(
        admitted_at_once(lengths, reserved, make=make),
        admitted_at_once(lengths, paged, make=make),
        BLOCK_SIZE,
    )
    more = line.paged > line.reserved
    hold(more, "memory", f"{line.paged} sequences fit in pages, {line.reserved} with reservation")
    return line


# --- 4. speculative decoding ---------------------------------------------------------------


def draw_accepted(rng: Rng) -> int:
    """Drafts that the target accepts in one round: one draw each, up to the first rejection."""
    accepted = 0
    while accepted < GAMMA and rng.next() < CHANCE:
        accepted += 1
    return accepted


def tokens_by_machine(rng: Rng, rounds: int, make: MakeWhole = SpecWhole) -> Iterator[int]:
    """Tokens that each round delivers, from the machine: one request, one round a pass."""
    most = rounds * (GAMMA + 1)
    longest = 1 + 1 + most + GAMMA  # prompt, first token, all rounds, the drafts of one more
    config = Config(
        num_blocks=blocks_for(longest, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_batched_tokens=longest,
        max_num_seqs=1,
        num_speculative_tokens=GAMMA,
    )
    loop = Loop(Machine(config, MINIATURE), make)
    drafts = tuple(range(1, GAMMA + 1))
    # The prompt's own pass verifies nothing, and is no round; it brings the first drafts. One token
    # more than the rounds can yield is allowed, so that no round is cut short.
    loop.submit("speculating", (0,), max_tokens=1 + most + 1)
    loop.schedule()
    loop.do(Complete((Output("speculating", (SAMPLED,), drafts),)))
    for _ in range(rounds):
        loop.schedule()
        kept = drafts[: draw_accepted(rng)]
        # The target's own token, a correction or a bonus, follows those it accepts.
        yield delivered(loop.do(Complete((Output("speculating", (*kept, SAMPLED), drafts),))))
    loop.do(Abort("speculating"))
    loop.check_returned("speculative decoding")


def tokens_by_count(rng: Rng, rounds: int) -> Iterator[int]:
    """The same, without the machine: what is accepted, and the target's own token."""
    return (draw_accepted(rng) + 1 for _ in range(rounds))


def speculation_line(
    rng: Rng,
    rounds: int = ROUNDS,
    on_machine: int = ROUNDS_ON_MACHINE,
    make: MakeWhole = SpecWhole,
) -> SpeculationLine:
    """Rounds of speculative decoding, the first `on_machine` of them through the machine.

    Raises:
        MiniatureError: the mean is further from its expectation than the article allows.
    """
    tokens = sum(tokens_by_machine(rng, on_machine, make))
    tokens += sum(tokens_by_count(rng, rounds - on_machine))
    expected = float(expected_tokens(ALPHA, GAMMA))
    line = SpeculationLine(rounds, on_machine, tokens / rounds, expected)
    near = abs(line.measured - line.expected) < TOLERANCE
    hold(near, "speculative decoding", f"{line.measured:.3f} tokens, not {line.expected:.3f}")
    return line


# --- all of it -----------------------------------------------------------------------------


def miniature(
    make: MakeWhole = SpecWhole,
) -> tuple[PoolLine, BatchLine, BatchLine, MemoryLine, SpeculationLine]:
    """The article's program, on the specification unless `make` makes something else. The order of
    the parts is the order of their draws.

    Raises:
        MiniatureError: one of the article's assertions does not hold.
    """
    rng = Rng()
    pool = pool_line(rng, make=make)
    static, continuous = batch_lines(rng, make=make)
    memory = memory_line(rng, make=make)
    return pool, static, continuous, memory, speculation_line(rng, make=make)


def lines(make: MakeWhole = SpecWhole) -> Iterator[str]:
    """What the article's program prints."""
    return (result.line() for result in miniature(make))
