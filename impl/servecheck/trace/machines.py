"""Makes the machine of a failing run small, and the run smaller by another machine.

Theory of operation. Once a run is as short as it gets, one size of the machine is made smaller, or
two, or the blocks and all that is counted in them; if the run, mended, goes on failing, it is
shrunk again from there, and so on (`shrink_world`). Where no size gets smaller, more room is tried:
a budget that holds a prompt whole saves the passes that it took, a seat more the pass that somebody
waited for it. A larger machine is kept only if the run has fewer actions with it. So there is an
end to it: actions never get more, and of as many actions the machine only gets smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from attrs import evolve

from servecheck.trace.shrink import StillFails, mend, shrink
from servecheck.trace.simpler import TOGETHER, Actions, smaller
from servespec.actions import Action, Submit
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine

Fails = Callable[[Machine], StillFails]
"""Gives the question of a machine."""
Change = Callable[[Actions], Actions]
"""What becomes of a run when the machine changes."""

LEAST = {
    "num_blocks": 1,
    "block_size": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "long_prefill_token_threshold": 0,
    "watermark": 0,
    "num_speculative_tokens": 0,
    "num_lookahead_tokens": 0,
}
IN_BLOCKS = ("max_model_len", "max_num_batched_tokens", "long_prefill_token_threshold")
"""Sizes that grow with the blocks."""
ROOM = {
    "max_num_batched_tokens": (2, 4),
    "max_num_seqs": (2,),
    "num_blocks": (2,),
    "max_model_len": (2,),
}
"""How many times as large a size is tried."""


def shrink_world(
    machine: Machine, actions: Sequence[Action], fails: Fails
) -> tuple[Machine, Actions]:
    """Shrink the run; then one size of the machine, if the run goes on failing; and so on. Choices
    stay as they are."""
    best = shrink(machine, actions, fails(machine))
    while True:
        machine, best = _smaller_world(machine, best, fails)
        found = _by_room(machine, best, fails)
        if found is None:
            return machine, best
        machine, best = found


def _smaller_world(machine: Machine, best: Actions, fails: Fails) -> tuple[Machine, Actions]:
    """One size smaller after the other, as long as the run goes on failing."""
    while True:
        for smaller_machine, changes in smaller_machines(machine):
            still_fails = fails(smaller_machine)
            for change in changes:
                mended = mend(smaller_machine, change(best))
                if still_fails(mended):
                    break
            else:
                continue
            machine, best = smaller_machine, shrink(smaller_machine, mended, still_fails)
            break
        else:
            return machine, best


def _by_room(machine: Machine, best: Actions, fails: Fails) -> tuple[Machine, Actions] | None:
    """A larger machine with which fewer actions do."""
    for larger in larger_machines(machine):
        still_fails = fails(larger)
        mended = mend(larger, best)
        if still_fails(mended):
            found = shrink(larger, mended, still_fails)
            if len(found) < len(best):
                return larger, found
    return None


def smaller_machines(machine: Machine) -> Iterator[tuple[Machine, tuple[Change, ...]]]:
    """The same machine with one size smaller, or with two sizes smaller by one, or with smaller
    blocks and all that is counted in them; and how a run may be changed for it."""
    sizes: dict[str, float] = {name: getattr(machine.config, name) for name in LEAST}

    def less(name: str) -> list[float]:
        # A part stays one: 0 and 0.0 are equal, and are not written alike.
        return [type(sizes[name])(value) for value in smaller(sizes[name], LEAST[name])]

    one = [{name: value} for name in LEAST for value in less(name)]
    two = [
        {name: less(name)[-1] for name in pair}
        for pair in combinations(LEAST, 2)
        if all(sizes[name] > LEAST[name] for name in pair)
    ]
    for changed in one + two:
        yield from _machine(machine, changed, (tuple, *TOGETHER))
    size = machine.config.block_size
    for fewer in smaller(size, 1):
        scaled: dict[str, float] = {
            name: _scaled(int(sizes[name]), size, fewer) for name in IN_BLOCKS
        }
        for changed in (scaled, {"max_model_len": scaled["max_model_len"]}):
            yield from _machine(machine, {"block_size": fewer, **changed}, (_shorter(size, fewer),))


def larger_machines(machine: Machine) -> Iterator[Machine]:
    """The same machine with more room: one size several times as large, or no threshold."""
    for name, times in ROOM.items():
        value: int = getattr(machine.config, name)
        for by in times:
            for larger, _ in _machine(machine, {name: by * value}, ()):
                yield larger
    if machine.config.long_prefill_token_threshold:
        for larger, _ in _machine(machine, {"long_prefill_token_threshold": 0}, ()):
            yield larger


def _machine(
    machine: Machine, changed: dict[str, float] | dict[str, int], changes: tuple[Change, ...]
) -> Iterator[tuple[Machine, tuple[Change, ...]]]:
    """The machine with these sizes, if sizes and choices then still go together."""
    make: Callable[..., Config] = evolve
    try:
        yield Machine(make(machine.config, **changed), machine.policy), changes
    except ConfigError:
        return


def _scaled(tokens: int, size: int, less: int) -> int:
    """As many blocks, and of what is left as many tokens as a smaller block has."""
    return tokens // size * less + min(tokens % size, less)


def _shorter(size: int, less: int) -> Change:
    """Prompts of as many blocks, of the tokens at the beginning of each."""

    def shorter(actions: Actions) -> Actions:
        return tuple(
            evolve(a, prompt=tuple(t for at, t in enumerate(a.prompt) if at % size < less))
            if isinstance(a, Submit)
            else a
            for a in actions
        )

    return shorter
