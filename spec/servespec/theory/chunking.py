"""Chunked prefill: what a token budget costs those who decode, and what it costs the newcomer.

Theory of operation. `batch` users decode, and a prompt arrives. Under a budget of b tokens a step,
decodes first, each step takes at most b - batch tokens of the prompt: a small budget keeps every
step short, a large one gets the newcomer its first token in fewer steps. Nothing here reckons the
chunks: the machine plans each step, under vLLM's policy, and the roofline prices its plan.

    pause        the longest step until the newcomer's first token: what a user waits between two
    first token  the sum of these steps

What to expect of a larger budget, and when it fails (the tests have a case of each):

* If every step is bound by arithmetic, the first token comes the sooner the fewer the chunks, and
  a budget that saves no chunk changes nothing (ARI-3). With a step bound by memory it may come
  later: cutting 2,048 + 2,048 tokens into 4,095 + 1 makes a step that costs a whole read of the
  weights for one token.
* The first step never gets shorter; the pause, which is the longest one, usually grows. It may
  shrink where the larger budget splits the prompt so that the step with the most behind it is
  smaller (2,048 + 2,048 and 2,049 + 2,047), and among budgets whose steps are all bound by memory,
  where fewer steps leave the users' contexts shorter.
* A budget of `batch` gives the newcomer nothing: it waits as long as the others decode. A smaller
  one leaves some of the users out as well, the youngest, as long as the older decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from attrs import evolve, frozen

from servespec.actions import Complete, Output, Schedule, Submit
from servespec.config import Config, blocks_for
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.plan import Plan, State
from servespec.policy import VLLM_0_33
from servespec.theory.memory import Deployment, fits_model
from servespec.theory.register import Kind, theorem
from servespec.theory.roofline import Work, of_plan, seconds, work
from servespec.theory.shapes import whole

BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Token budgets; vLLM's documentation names 2,048 for latency and above 8,192 for throughput."""

MOST_USERS = 1024
BLOCK_SIZE = 16
NEWCOMER = "newcomer"


@frozen
class Trade:
    """What one budget comes to."""

    budget: int
    steps: tuple[Fraction, ...]
    """Seconds of each step from the arrival to the newcomer's first token; if it never comes, of
    one."""
    chunks: tuple[int, ...]
    """Tokens of the prompt in each; none if it never comes."""
    bound_by_memory: int
    """Of these steps, so many wait for memory."""
    left_out: int
    """Users without a token in the first step."""

    @property
    def pause(self) -> Fraction | None:
        """Longest time between two tokens of a user, in seconds; None: some user has no end of
        it."""
        return None if self.left_out else max(self.steps)

    @property
    def first_token(self) -> Fraction | None:
        """Seconds from arrival to the newcomer's first token; None: never."""
        return Fraction(sum(self.steps)) if self.chunks else None


def trades(
    d: Deployment, batch: int, context: int, prompt: int, budgets: Iterable[int] = BUDGETS
) -> Iterator[Trade]:
    """For each budget, the steps from the arrival of a prompt among `batch` users, whose decodes
    attend to `context` positions when it arrives.

    Raises:
        ConfigError: sizes that make no sense, or do not fit the model's context.
    """
    budgets = tuple(budgets)
    for budget in budgets:
        whole(budget, "budget")
    whole(batch, "batch")
    fits_model(d.model, "prompt", prompt)
    fits_model(d.model, "context", context)
    whole(context, "context", 2)  # a decode attends to a prompt and to itself
    tight = [budget - batch for budget in budgets if budget > batch]
    most = max((-(-prompt // left) for left in tight), default=1)
    fits_model(d.model, "context, a token longer each step", context + most - 1)
    if batch > MOST_USERS:
        problem = f"{batch} users are more than the machine is asked to hold"
        raise ConfigError("batch", problem, f"give at most {MOST_USERS}")
    machine, state = _decoding(batch, context, prompt, most)
    for budget in budgets:
        config = evolve(machine.config, max_num_batched_tokens=budget)
        yield _trade(d, Machine(config, machine.policy), state, batch)


def _decoding(batch: int, context: int, prompt: int, most: int) -> tuple[Machine, State]:
    """A machine with room for all, for `most` steps, in which the users' prompts are computed and
    the newcomer waits. The users share one prompt, which keeps the machine small; the roofline
    counts the reads of each all the same. The newcomer shares nothing with them."""
    longest = max(context, prompt) + most + 1
    # Of its own: what it writes, and the end of its prompt.
    each = blocks_for(most, BLOCK_SIZE) + 1
    shared = blocks_for(context, BLOCK_SIZE) + blocks_for(prompt, BLOCK_SIZE)
    config = Config(
        num_blocks=1 + shared + batch * each,
        block_size=BLOCK_SIZE,
        max_model_len=longest,
        max_num_batched_tokens=batch * context,
        max_num_seqs=batch + 1,
    )
    machine = Machine(config, VLLM_0_33)
    state = machine.initial()
    for user in range(batch):
        text = (0,) * (context - 1)
        state = machine.apply(state, Submit(f"user {user}", text, max_tokens=longest)).state
    state = machine.apply(state, Schedule()).state
    state = _completed(machine, state)
    text = (1, *(0,) * (prompt - 1))
    return machine, machine.apply(state, Submit(NEWCOMER, text, max_tokens=1)).state


def _completed(machine: Machine, state: State) -> State:
    """Every request that reached the end of its text samples token 0."""
    outputs = tuple(Output(e.id, (0,)) for e in state.in_flight[0].entries if e.yields)
    return machine.apply(state, Complete(outputs)).state


def _trade(d: Deployment, machine: Machine, state: State, batch: int) -> Trade:
    done: list[Work] = []
    chunks: list[int] = []
    arrived, left_out = False, 0
    while not arrived:
        state = machine.apply(state, Schedule()).state
        plan: Plan = state.in_flight[0]
        done.append(work(d, of_plan(plan)))
        entry = plan.entry(NEWCOMER)
        if entry is None:
            left_out = batch - len(plan.entries)
            break
        chunks.append(len(entry.tokens))
        arrived = entry.yields
        state = _completed(machine, state)
    times = tuple(seconds(d, w) for w in done)
    memory = sum(w.intensity < d.device.ridge for w in done)
    return Trade(machine.config.max_num_batched_tokens, times, tuple(chunks), memory, left_out)


@theorem("ARI-3", Kind.X)
def saves_nothing(one: Trade, other: Trade) -> bool | None:
    """If under two budgets every step is bound by arithmetic, the first token comes sooner under
    the one that cuts the prompt into fewer chunks, and at the same moment if both cut it into as
    many. So first tokens are monotone in the budget where memory bounds nothing.

    All steps together compute every token of the prompt once, its pairs once, and one token of
    each user a step, with the same contexts: only the number of steps differs. Returns whether it
    is so, None where a step is bound by memory or the first token never comes.
    """
    mine, its = one.first_token, other.first_token
    if mine is None or its is None or one.bound_by_memory or other.bound_by_memory:
        return None
    return _sign(mine - its) == _sign(len(one.chunks) - len(other.chunks))


def _sign(number: Fraction | int) -> int:
    return (number > 0) - (number < 0)


def exceptions(
    rows: Sequence[Trade],
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Neighbouring budgets of a table, in rising order, that are not as one expects: the larger one
    gives a shorter pause; the larger one gives a later first token. Both empty: the table is
    monotone, as far as it goes."""
    return (
        _neighbours(rows, lambda small, large: _less(large.pause, small.pause)),
        _neighbours(rows, lambda small, large: _less(small.first_token, large.first_token)),
    )


def _neighbours(
    rows: Sequence[Trade], odd: Callable[[Trade, Trade], bool]
) -> tuple[tuple[int, int], ...]:
    return tuple(
        (small.budget, large.budget) for small, large in pairwise(rows) if odd(small, large)
    )


def _less(one: Fraction | None, other: Fraction | None) -> bool:
    """What never ends, or never comes, is no exception: a larger budget mends it."""
    return one is not None and other is not None and one < other
