"""Cache events as they go out on the wire, and as two of them are compared."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.recording import model
from servecheck.recording.digest import hex_hash
from servespec.events import BlockRemoved, BlockStored, CacheCleared, Event


def on_the_wire(events: tuple[Event, ...]) -> Iterator[model.Event]:
    """The cache events of one transition; neighbouring stores of one request are one event."""
    run: list[BlockStored] = []
    for event in (*events, None):
        if isinstance(event, BlockStored):
            run.append(event)
            continue
        if run:
            first = run[0]
            yield model.BlockStored(
                block_hashes=tuple(hex_hash(e.key) for e in run),
                parent_block_hash=None if first.parent is None else hex_hash(first.parent),
                token_ids=tuple(t for e in run for t in e.key.tokens),
                block_size=len(first.key.tokens),
                extra_keys=tuple(
                    (salt,) if e.parent is None and (salt := e.key.namespace.salt) else None
                    for e in run
                ),
            )
            run = []
        match event:
            case BlockRemoved(_, key):
                yield model.BlockRemoved((hex_hash(key),))
            case CacheCleared():
                yield model.AllBlocksCleared()


def named(event: model.Event, whole: bool) -> dict[str, object]:
    """An event as it is compared; `whole` hashes are hex digits, others their low 64 bits."""

    def form(name: model.BlockHash | None) -> model.BlockHash | None:
        return int(name, 16) & (2**64 - 1) if isinstance(name, str) and not whole else name

    named: dict[str, object] = {"type": type(event).__name__}
    if not isinstance(event, model.AllBlocksCleared):
        named["block_hashes"] = tuple(form(h) for h in event.block_hashes)
    if isinstance(event, model.BlockStored):
        named["parent_block_hash"] = form(event.parent_block_hash)
        named["token_ids"] = event.token_ids
        named["block_size"] = event.block_size
        named["extra_keys"] = event.extra_keys
    return named
