"""Moves: the kinds of things that a walk does, each a small function with its condition.

Theory of operation. A move is offered only where it is enabled, so no step is spent on what cannot
happen, except for the last group, which does what a machine must refuse. Moves are fine-grained,
one situation each, because Hypothesis leaves some of them out of each run (swarm testing): a run
without resets fills the cache, one without aborts fills the pool. Those that carry the loop forward
are several, so that hardly a run is without any of them.

A move draws its details *relatively*: the k-th living request, the text of somebody who was here.
So when a shrinker takes an earlier move away, the later ones still mean something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import frozen

from servecheck.fuzz.draw import Chance, digits, pick
from servecheck.fuzz.names import resembling
from servecheck.fuzz.walk import Text, Walk
from servespec.actions import Submit
from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.config import usable_blocks
from servespec.machine import Abort, Action, Complete, Discard, Output, ResetCache, Schedule
from servespec.plan import Planned
from servespec.request import Request

NAMESPACES = (
    Namespace("a", "bc"),
    Namespace("ab", "c"),
    Namespace(None, "abc"),
    Namespace("abc", None),
)
"""They all spell the same: who concatenates adapter and salt lets them share."""

MOST_LIVE = 6
"""Requests alive at once; more would only wait."""
TURNS = 6
"""Most turns of the loop in one move."""
LONG = 12
"""Turns in which most that can end has ended."""


class Fire(Protocol):
    """Carries a move out."""

    __name__: str

    def __call__(self, walk: Walk, chance: Chance, /) -> None: ...


When = Callable[[Walk], bool]


@frozen
class Move:
    """One kind of thing that can happen, and when it can."""

    name: str
    fire: Fire
    enabled: When


MOVES: dict[str, Move] = {}


def move(when: When) -> Callable[[Fire], Fire]:
    """Register a move that is enabled under a condition."""

    def register(fire: Fire) -> Fire:
        MOVES[fire.__name__] = Move(fire.__name__, fire, when)
        return fire

    return register


def fire(move: Move, walk: Walk, chance: Chance) -> None:
    """Carry a move out, and count it.

    Raises:
        PropertyFell: a property fell where it is not known to fall.
    """
    walk.moves[move.name] += 1
    move.fire(walk, chance)


# --- conditions ----------------------------------------------------------------------------


def always(walk: Walk) -> bool:
    return True


def room(walk: Walk) -> bool:
    """More requests may come."""
    return len(walk.state.running) + len(walk.state.waiting) < MOST_LIVE


def somebody(walk: Walk) -> bool:
    return bool(walk.state.running or walk.state.waiting)


def idle(walk: Walk) -> bool:
    return not walk.state.in_flight


def gone(walk: Walk) -> tuple[str, ...]:
    """Ids of those who have left, and nobody else has, the last first."""
    return tuple(i for i in reversed(walk.free_ids) if walk.state.find(i) is None)


def drafting(walk: Walk) -> bool:
    return walk.config.num_speculative_tokens > 0


def known_text(walk: Walk) -> bool:
    return room(walk) and (somebody(walk) or bool(walk.ended))


def in_flight(walk: Walk) -> tuple[Planned, ...]:
    """Entries of the living."""
    return tuple(e for plan in walk.state.in_flight for e in plan.entries if not e.cancelled)


def resting(walk: Walk) -> tuple[Request, ...]:
    """Who runs, and is in no step in flight."""
    busy = {e.id for e in in_flight(walk)}
    return tuple(r for r in walk.state.running if r.id not in busy)


# --- submit: prompts by length -------------------------------------------------------------


@move(room)
def submit_fresh(walk: Walk, chance: Chance) -> None:
    """A short prompt."""
    walk.submit(chance, walk.tokens(chance, 1 + chance.below(6)))


@move(room)
def submit_around_blocks(walk: Walk, chance: Chance) -> None:
    """A prompt of whole blocks, or one token more or less."""
    size = walk.config.block_size
    around = pick(chance, (0, 1, -1))
    walk.submit(chance, walk.tokens(chance, max((1 + chance.below(3)) * size + around, 1)))


@move(room)
def submit_crowd(walk: Walk, chance: Chance) -> None:
    """Several requests at once, which together want more than there is; or more than there are
    seats, all of which go on for long, in step with each other, so some wait when blocks end."""
    size, wanted = walk.config.block_size, LONG * chance.below(2)
    seats = walk.config.max_num_seqs - len(walk.state.live)
    many, longest = (max(seats, 1) + 1, size) if wanted else (2, 2 * size)
    for urgency in digits(chance, 3, many + chance.below(3 if not wanted else 2)):
        if room(walk):
            prompt = walk.tokens(chance, 1 + chance.below(longest))
            walk.submit(chance, prompt, Submit("", (0,), 1, priority=urgency), wanted)


@move(room)
def submit_filling(walk: Walk, chance: Chance) -> None:
    """A prompt that fills the pool, or nearly."""
    slots = usable_blocks(walk.config, walk.policy) * walk.config.block_size
    walk.submit(chance, walk.tokens(chance, max(slots - chance.below(4), 1)))


@move(room)
def submit_impossible(walk: Walk, chance: Chance) -> None:
    """A request that can never be served, by its prompt or by its output, soon or in the end."""
    slots = usable_blocks(walk.config, walk.policy) * walk.config.block_size
    long = min(slots, walk.config.max_model_len)
    length = pick(chance, (long + 1, walk.longest + 1, long - 1, 2))
    prompt = walk.tokens(chance, max(length, 1))
    walk.do(Submit(walk.new_id(), prompt, max_tokens=max(long + 2 - length, 1)))


# --- submit: prompts by what is cached -----------------------------------------------------


@move(known_text)
def submit_again(walk: Walk, chance: Chance) -> None:
    """A recent prompt, in its namespace."""
    text = pick(chance, walk.texts)
    walk.submit(chance, text.prompt, _in(text.namespace))


@move(known_text)
def submit_follow_up(walk: Walk, chance: Chance) -> None:
    """Prompt and output of somebody, and perhaps some tokens more."""
    text = pick(chance, walk.texts)
    more = walk.tokens(chance, chance.below(3))
    walk.submit(chance, text.whole + more, _in(text.namespace))


@move(known_text)
def submit_diverging(walk: Walk, chance: Chance) -> None:
    """A recent text up to somewhere, then another token, then as before."""
    text = pick(chance, walk.texts)
    at = chance.below(len(text.whole))
    other = (text.whole[at] + 1) % walk.alphabet
    walk.submit(chance, (*text.whole[:at], other, *text.whole[at + 1 :]), _in(text.namespace))


def _in(namespace: Namespace) -> Submit:
    return Submit("", (0,), 1, namespace=namespace)


# --- submit: requests by manner ------------------------------------------------------------


@move(room)
def submit_apart(walk: Walk, chance: Chance) -> None:
    """A recent text in another namespace, or a new one in any but the public."""
    recent = walk.texts[:1]
    text = pick(chance, recent) if recent else Text(PUBLIC, walk.tokens(chance, 3), ())
    others = [n for n in (*NAMESPACES, PUBLIC) if n != text.namespace]
    walk.submit(chance, text.whole or text.prompt, _in(pick(chance, others)))


@move(known_text)
def submit_together(walk: Walk, chance: Chance) -> None:
    """A request that arrives with the one before it, perhaps with its text."""
    text = pick(chance, walk.texts)
    prompt = pick(chance, (text.prompt, text.whole[: walk.config.block_size]))
    urgency = chance.below(3)
    walk.submit(chance, prompt, Submit("", (0,), 1, priority=urgency, with_last=True))


@move(room)
def submit_urgent(walk: Walk, chance: Chance) -> None:
    """A request with a priority."""
    urgency = chance.below(3)
    prompt = walk.tokens(chance, 1 + chance.below(8))
    walk.submit(chance, prompt, Submit("", (0,), 1, priority=urgency))


@move(lambda walk: len(walk.state.live) + 2 <= walk.config.max_num_seqs)
def submit_one_by_one(walk: Walk, chance: Chance) -> None:
    """Requests that come while others run, each more urgent than the one before, one for each seat
    or one too many. Each takes a share of what is free and goes on for long, so blocks end while
    all of them run, and the last prompts are still being read. Then some turns."""
    size = walk.config.block_size
    for urgency in range(walk.config.max_num_seqs - 1 + chance.below(2), -1, -1):
        if not room(walk):
            break
        free, parts = len(walk.state.pool.free) * size, pick(chance, (2, 1, 3, 0))
        share = free // (urgency + parts) if parts else 1
        prompt = walk.tokens(chance, max(share - chance.below(size), 1))
        walk.submit(chance, prompt, Submit("", (0,), 1, priority=urgency), wanted=LONG)
        _turn(walk)
    for _ in range(2 + chance.below(TURNS)):
        _turn(walk)


def _turn(walk: Walk) -> None:
    """A step as the model answers."""
    walk.complete(lambda entry, request: walk.answer(entry, request, len(entry.drafts), 1))


@move(room)
def submit_stopping(walk: Walk, chance: Chance) -> None:
    """A request with a stop token."""
    stop = chance.below(walk.alphabet)
    prompt = walk.tokens(chance, 1 + chance.below(6))
    walk.submit(chance, prompt, Submit("", (0,), 1, stop=(stop,)))


@move(lambda walk: room(walk) and bool(gone(walk)))
def submit_namesake(walk: Walk, chance: Chance) -> None:
    """A request with the id of the last who left, perhaps with its text, perhaps in another
    namespace."""
    texts = walk.ended[-1:]
    prompt = (
        texts[0].whole if texts and chance.below(2) else walk.tokens(chance, 1 + chance.below(6))
    )
    namespace = pick(chance, (PUBLIC, PUBLIC, *NAMESPACES))
    walk.submit(chance, prompt, Submit(gone(walk)[0], (0,), 1, namespace=namespace))


# --- the loop goes on ----------------------------------------------------------------------


@move(idle)
def schedule(walk: Walk, chance: Chance) -> None:
    """Make a plan, and leave it in flight."""
    walk.schedule()


@move(somebody)
def complete_as_model(walk: Walk, chance: Chance) -> None:
    """A step as the model answers; so many of the next drafts will be right."""
    right = chance.below(walk.config.num_speculative_tokens + 1)
    walk.complete(lambda entry, request: walk.answer(entry, request, len(entry.drafts), right))


@move(somebody)
def turns(walk: Walk, chance: Chance) -> None:
    """Some turns of the loop; drafts get better as the text grows."""
    gamma = walk.config.num_speculative_tokens
    for _ in range(1 + chance.below(TURNS)):
        walk.complete(
            lambda entry, request: walk.answer(entry, request, gamma, request.length % (gamma + 1))
        )
        if not somebody(walk):
            break


@move(lambda walk: somebody(walk) or not idle(walk))
def complete_drawn(walk: Walk, chance: Chance) -> None:
    """A step whose every token is drawn."""

    def drawn(entry: Planned, request: Request) -> Output:
        accepted = chance.below(len(entry.drafts) + 1) if min(entry.drafts, default=0) >= 0 else 0
        tokens = (*entry.drafts[:accepted], chance.below(walk.alphabet))
        ahead = walk.tokens(chance, chance.below(walk.config.num_speculative_tokens + 1))
        return Output(entry.id, tokens, ahead)

    walk.complete(drawn)


@move(somebody)
def turns_to_the_end(walk: Walk, chance: Chance) -> None:
    """Turns of the loop until nobody is left, or long enough."""
    for _ in range(LONG):
        walk.complete(lambda entry, request: walk.answer(entry, request, len(entry.drafts), 1))
        if not somebody(walk):
            break


@move(drafting)
def complete_accepting(walk: Walk, chance: Chance) -> None:
    """A step that accepts every draft, and proposes good ones."""
    walk.complete(lambda entry, request: _accepting(walk, entry, request))


def _accepting(walk: Walk, entry: Planned, request: Request) -> Output:
    """All drafts, right or wrong, and then what the model says."""
    drafts = entry.drafts if min(entry.drafts, default=0) >= 0 else ()
    said = walk.answer(entry, request, 0, walk.config.num_speculative_tokens)
    return Output(entry.id, (*drafts, *said.tokens), said.drafts)


@move(somebody)
def complete_stopping(walk: Walk, chance: Chance) -> None:
    """A step in which who has a stop token samples it, and gets it proposed."""

    def stopping(entry: Planned, request: Request) -> Output:
        said = _accepting(walk, entry, request)
        if not request.stop:
            return said
        ahead = request.stop * walk.config.num_speculative_tokens
        late = request.length % 2 == 0 and bool(ahead)
        return Output(entry.id, said.tokens if late else (*said.tokens[:-1], *request.stop), ahead)

    walk.complete(stopping)


@move(lambda walk: walk.machine.can_discard)
def discard(walk: Walk, chance: Chance) -> None:
    """A step that never ran."""
    walk.schedule()
    walk.do(Discard())


# --- leaving -------------------------------------------------------------------------------


@move(lambda walk: bool(walk.state.waiting))
def abort_waiting(walk: Walk, chance: Chance) -> None:
    walk.abort(pick(chance, walk.state.waiting).id)


@move(lambda walk: bool(resting(walk)))
def abort_running(walk: Walk, chance: Chance) -> None:
    walk.abort(pick(chance, resting(walk)).id)


@move(somebody)
def abort_in_flight(walk: Walk, chance: Chance) -> None:
    """Somebody whose step is in flight, if that step has anybody."""
    walk.schedule()
    if flying := in_flight(walk):
        walk.abort(pick(chance, flying).id)
        _land(walk, chance)


def _land(walk: Walk, chance: Chance) -> None:
    """The step in flight stays there, or ends in one of the ways in which it can."""
    end = chance.below(3)
    if end == 1:
        _turn(walk)
    elif end == 2 and walk.machine.can_discard:
        walk.do(Discard())


@move(lambda walk: bool(walk.free_ids) and not isinstance(walk.actions[-1], Abort))
def abort_gone(walk: Walk, chance: Chance) -> None:
    """Somebody who has left, or who never was, though somebody with a similar id is here."""
    strangers = (other for r in walk.state.live[-1:] for other in resembling(r.id))
    nobody = tuple(name for name in strangers if walk.state.find(name) is None)
    walk.abort(pick(chance, (*gone(walk)[:1], "nobody", *nobody)))


@move(lambda walk: bool(walk.state.pool.index.copies or walk.state.running))
def reset(walk: Walk, chance: Chance) -> None:
    walk.do(ResetCache(preempt_running=bool(chance.below(2))))


@move(lambda walk: bool(walk.state.running))
def reset_in_flight(walk: Walk, chance: Chance) -> None:
    """A reset that may send back who is in a step."""
    walk.schedule()
    walk.do(ResetCache(preempt_running=True))
    _land(walk, chance)


# --- what must be refused ------------------------------------------------------------------


@move(always)
def refused(walk: Walk, chance: Chance) -> None:
    """An action that the state does not offer."""
    offered: list[Action] = [Complete((Output("nobody", (0,)),))]
    if walk.busy:
        offered.append(Schedule())
    if idle(walk) or not walk.machine.can_discard:
        offered.append(Discard())
    if somebody(walk):
        offered.append(Submit(walk.state.live[-1].id, (0,), 1))
    for entry in in_flight(walk)[:1]:  # more drafts than there are, or a token of a chunk
        stray: Tokens = (0,) * (len(entry.drafts) + 2) if entry.yields else (0,)
        offered.append(Complete((Output(entry.id, stray),)))
    walk.refuses(pick(chance, offered))
