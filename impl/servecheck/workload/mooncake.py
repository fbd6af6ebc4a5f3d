"""Mooncake's traces of real conversations: lengths, and which prefix blocks are shared.

Theory of operation. A line has `timestamp` (ms), `input_length`, `output_length` (tokens) and
`hash_ids`: one id for each 512 tokens of the prompt, the last one for what is left. Ids are prefix
ids: equal ids stand for equal text from the start of the prompt. So an id can stand for any tokens
of its own, as long as they are always the same; they can be fewer than 512, too, if lengths shrink
with them, and sharing stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
from attrs import frozen

from servecheck.workload.zipf import Served
from servespec.chain import Tokens

TRACED_BLOCK = 512
"""Tokens that an id stands for."""


@frozen
class MooncakeError(Exception):
    """A line that is none of this format."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}; give a trace as Mooncake publishes them"


@frozen
class Conversation:
    """One line. Lengths in tokens."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read(path: Path, most: int | None = None) -> Iterator[Conversation]:
    """The lines of a trace, at most so many.

    Raises:
        MooncakeError: naming the line and what is wrong with it.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if most is not None and number > most:
                return
            yield _line(path, number, text)


def _line(path: Path, number: int, text: bytes) -> Conversation:
    try:
        found: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MooncakeError(path, number, f"no JSON ({error})") from None
    if not isinstance(found, dict):
        raise MooncakeError(path, number, "no object")
    sizes = [found.get(name) for name in ("timestamp", "input_length", "output_length")]
    ids = found.get("hash_ids")
    if not isinstance(ids, list) or not all(type(v) is int and v >= 0 for v in (*sizes, *ids)):
        raise MooncakeError(path, number, "its numbers are not all there, whole and from 0")
    at, length, output = (int(str(size)) for size in sizes)
    if len(ids) != -(-length // TRACED_BLOCK) or not length:
        raise MooncakeError(path, number, f"{len(ids)} ids for {length} tokens")
    return Conversation(at, length, output, tuple(ids))


def shrunk(line: Conversation, request_id: str, block: int = 16) -> Served:
    """The request with `block` tokens in place of 512: the prompt shares what it shared."""
    scale = TRACED_BLOCK // block
    length = -(-line.input_length // scale)
    tokens = tuple(i * block + k for i in line.hash_ids for k in range(block))[:length]
    return Served(request_id, tokens, answer(max(1, line.output_length // scale)))


def answer(length: int) -> Tokens:
    """Any tokens: an answer comes back only where a later prompt says so."""
    return tuple(range(length))
