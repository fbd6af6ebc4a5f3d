"""Outputs: a closed system, in which a model answers what it reads in the cache.

Theory of operation. A specification that is told what was sampled cannot say that it was wrong. So
here a `Model` answers: a function from the content of the last slot, that is all that the forward
pass has read through the block table up to there, to the next token. `answers` lets a plan run as a
worker does it: entry by entry, in the order of the plan, it writes the entry's tokens through its
table, then reads. A slot that nobody wrote holds None, and the model answers to that, too.

What a request should get is the model's own continuation of its prompt (`continuation`), computed
from the text alone. OUT-1 says that it gets that, whatever shares, chunks, preempts or speculates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from weakref import WeakKeyDictionary

from servespec import pool as blocks
from servespec.actions import Complete, Output, Submit
from servespec.chain import Chain, Namespace, Token, Tokens, link
from servespec.events import Delivered, Event
from servespec.machine import Machine, acceptable
from servespec.plan import Planned, State
from servespec.theory.register import Kind, theorem

Model = Callable[[Chain | None], Token]
"""The next token, from what a slot holds; None is a slot that was never written."""


def digest_model(vocabulary: int) -> Model:
    """A model that depends on every token before, and on the adapter; on the salt it does not.

    It says the tokens 0 … vocabulary - 1; to a slot that was never written it says `vocabulary`.
    """
    known: WeakKeyDictionary[Chain, bytes] = WeakKeyDictionary()

    def digest(content: Chain) -> bytes:
        unknown: list[Chain] = []
        for node in content.path():
            if node in known:
                break
            unknown.append(node)
        for node in reversed(unknown):
            before = repr(node.namespace.adapter).encode()
            before = before if node.parent is None else known[node.parent]
            known[node] = blake2b(before + repr(node.tokens).encode(), digest_size=8).digest()
        return known[content]

    def model(content: Chain | None) -> Token:
        if content is None:
            return vocabulary
        return int.from_bytes(digest(content)) % vocabulary

    return model


def answers(model: Model, right: int = 0) -> Callable[[Machine, State], Complete]:
    """What the oldest plan in flight brings, if this model answers what it reads.

    Of the next drafts the first `right` are the model's own, the others are not.
    """

    def complete(machine: Machine, state: State) -> Complete:
        size, pool = machine.config.block_size, state.pool
        said = []
        for entry in state.in_flight[0].entries:
            pool = blocks.write(pool, size, entry.table, entry.namespace, entry.start, entry.tokens)
            if entry.yields and not entry.cancelled:
                stop = entry.start + len(entry.tokens) - len(entry.drafts)
                slots = range(stop - 1, stop + len(entry.drafts))
                read = [blocks.read(pool, size, entry.table, at) for at in slots]
                said.append(_output(machine, entry, read, model, right))
        return Complete(tuple(said))

    return complete


def _output(
    machine: Machine, entry: Planned, read: list[Chain | None], model: Model, right: int
) -> Output:
    """Drafts are accepted while they are what the model answers; then its answer follows."""
    tokens: Tokens = ()
    for draft in entry.drafts[: acceptable(entry)]:
        if draft != model(read[len(tokens)]):
            break
        tokens += (draft,)
    at = read[len(tokens)]
    tokens += (model(at),)
    ahead: Tokens = ()
    for i in range(machine.config.num_speculative_tokens):
        at = None if at is None else link(entry.namespace, at, (*tokens, *ahead)[-1:])
        ahead += (model(at) + (i >= right),)
    return Output(entry.id, tokens, ahead)


def continuation(model: Model, namespace: Namespace, prompt: Tokens, count: int) -> Tokens:
    """The model's own next `count` tokens."""
    at: Chain | None = None
    for token in prompt:
        at = link(namespace, at, (token,))
    found: Tokens = ()
    for _ in range(count):
        found += (model(at),)
        at = link(namespace, at, found[-1:])
    return found


@theorem("OUT-1", Kind.H)
def wrong_output(model: Model, submit: Submit, events: Iterable[Event]) -> str | None:
    """In a closed system, what a request is delivered is a prefix of the model's own continuation
    of its prompt, whatever sharing, chunking, preemption, speculation and neighbours do. It falls
    where CON-1 falls, and there a user reads a wrong answer.

    Why. By CON-1 all that a pass reads is the request's own text, so the model answers as it would
    to that; by DEL-1 each answer is delivered once, in order.

    Returns what is wrong with the events of one request's life, or None.
    """
    got: Tokens = ()
    for event in events:
        if isinstance(event, Delivered) and event.id == submit.id:
            got += event.tokens
    own = continuation(model, submit.namespace, submit.prompt, len(got))
    if got == own:
        return None
    at = next(i for i, token in enumerate(own) if got[i] != token)
    return f"{submit.id}: token {at} of the output is {got[at]}, the model says {own[at]}"
