"""Marks of blocks that are stored and evicted."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.marks.mark import Mark, having
from servespec.chain import Namespace
from servespec.events import BlockRemoved, BlockStored
from servespec.properties.books import Moment


def eviction(m: Moment, event: BlockRemoved) -> Iterator[Mark]:
    copies = len(m.index.get(event.key, ()))
    orphans = any(key.parent is event.key and held for key, held in m.index.items())
    yield Mark.EVICTION
    if copies > 1:
        yield Mark.EVICTION_COPY_STAYS
    elif orphans:
        yield Mark.EVICTION_OF_PARENT


def storing(m: Moment, event: BlockStored) -> Iterator[Mark]:
    key = event.key
    yield from having(
        {
            Mark.DUPLICATE_STORED: bool(m.index.get(key)),
            Mark.ONE_TOKEN_BLOCK: len(key.tokens) == 1,
        }
    )
    if key.parent is not None:
        return
    apart = [
        other.namespace
        for other, held in m.index.items()
        if held and other.parent is None and other is not key and other.tokens == key.tokens
    ]
    if apart:
        yield Mark.SAME_TOKENS_APART
    if any(_spelt(other) == _spelt(key.namespace) for other in apart):
        yield Mark.SAME_SPELLING_APART


def _spelt(namespace: Namespace) -> str:
    return (namespace.adapter or "") + (namespace.salt or "")
