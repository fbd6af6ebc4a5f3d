"""The smallest stream on which something goes wrong, found by going through all of them in order.

Theory of operation. A `Space` has some kinds of requests and some steps at which they may arrive.
Its streams are ordered by size: first by the number of requests, then by their tokens, then by when
they arrive; `smallest` runs them one after the other and stops at the first that is odd. So what it
returns is no larger than any other of the space, and if it returns None there is none. An `Odd` is
a question to two runs of one stream, through two machines. Of streams that differ in the names of
their tokens alone, one is looked at: machines do not tell them apart (EQV-1), and what the model
answers is in no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations_with_replacement, product

from attrs import evolve, frozen

from servespec.actions import Submit
from servespec.chain import Tokens
from servespec.theory.batching import Twins
from servespec.theory.stream import ANSWER, Answers, Arrival, Course, Steps, Stream, always

Odd = Callable[[Course, Course], bool]


@frozen
class Space:
    """Streams of 1 … `most` requests of these kinds, which arrive at steps 0 … `last_arrival`."""

    kinds: tuple[Submit, ...]
    """What a request may be; its id is given by its place in the stream."""
    most: int
    last_arrival: int

    def streams(self, count: int) -> Iterator[Stream]:
        """Those of `count` requests, smallest first."""
        steps = tuple(combinations_with_replacement(range(self.last_arrival + 1), count))
        kinds = sorted(product(range(len(self.kinds)), repeat=count), key=self._tokens)
        for chosen in kinds:
            if not named_in_order(self.kinds[kind].prompt for kind in chosen):
                continue
            for at in steps:
                yield Stream(
                    tuple(
                        Arrival(step, evolve(self.kinds[kind], id=f"r{i}"))
                        for i, (step, kind) in enumerate(zip(at, chosen, strict=True))
                    )
                )

    def _tokens(self, chosen: tuple[int, ...]) -> int:
        return sum(len(self.kinds[k].prompt) + self.kinds[k].max_tokens for k in chosen)


def named_in_order(prompts: Iterable[Tokens]) -> bool:
    """The tokens are 0, 1, … in the order in which they first appear."""
    names = tuple(dict.fromkeys(token for prompt in prompts for token in prompt))
    return names == tuple(range(len(names)))


def all_kinds(
    prompts: tuple[tuple[int, ...], ...], outputs: int, priorities: tuple[int, ...] = (0,)
) -> tuple[Submit, ...]:
    """Every request with one of the prompts, 1 … `outputs` tokens and one of the priorities."""
    return tuple(
        Submit("", prompt, output, priority=priority)
        for prompt in prompts
        for output in range(1, outputs + 1)
        for priority in priorities
    )


@frozen
class Found:
    """The first odd stream, and how many were looked at up to it."""

    stream: Stream
    first: Course
    second: Course
    looked_at: int


def both(twins: Twins, space: Space, answers: Answers | None = None) -> Iterator[Found]:
    """Every stream of the space through both machines, smallest first."""
    making = tuple(
        Steps(machine, answers or always(ANSWER)) for machine in (twins.first, twins.second)
    )
    number = 0
    for count in range(1, space.most + 1):
        for stream in space.streams(count):
            number += 1
            first, second = (Course(m, m.machine.initial()).through(stream) for m in making)
            yield Found(stream, first, second, number)


def smallest(twins: Twins, space: Space, odd: Odd, answers: Answers | None = None) -> Found | None:
    """The first stream of the space, in order of size, on which the two runs are odd."""
    return next((f for f in both(twins, space, answers) if odd(f.first, f.second)), None)
