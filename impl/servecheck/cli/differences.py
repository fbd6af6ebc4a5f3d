"""Where two values part, in words short enough to compare by eye.

Theory of operation. A difference of a replay is two whole values: two queues, two tables of all
requests. `parts` walks down both at once, as long as they are built alike, and gives the places
where they part: for a record each attribute, for a mapping each key, for a sequence the first
item. From there on a sequence is shown as far as a line goes, so that the two, one above the
other, show whether something was swapped, lost or put in between.

    free[3]
      recorded   7, 2, 5, … 12 more
      specified  2, 7, 5, … 12 more

`plain` gives the same values whole, for JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import zip_longest

import attrs
from attrs import frozen

NOTHING = "nothing"
_ABSENT = object()


@frozen
class Part:
    """One place where two values part, and what stands there on each side."""

    path: str
    recorded: str
    specified: str


def parts(path: str, recorded: object, specified: object, width: int) -> Iterator[Part]:
    """The places where two values part; a side is shown in at most `width` columns."""
    match recorded, specified:
        case (dict(), dict()):
            for key in dict.fromkeys((*recorded, *specified)):
                one, other = recorded.get(key, _ABSENT), specified.get(key, _ABSENT)
                if one != other:
                    yield from parts(f"{path}.{_step(key)}", one, other, width)
        case (frozenset(), frozenset()):
            yield Part(
                f"{path}, what one side alone holds",
                _listed(sorted(recorded - specified, key=repr), width),
                _listed(sorted(specified - recorded, key=repr), width),
            )
        case (tuple(), tuple()):
            yield from _parts_of_sequences(path, recorded, specified, width)
        case _ if _alike(recorded, specified):
            for name in _fields(recorded):
                one, other = getattr(recorded, name), getattr(specified, name)
                if one != other:
                    yield from parts(f"{path}.{name}", one, other, width)
        case _:
            yield Part(path, _cut(_shown(recorded), width), _cut(_shown(specified), width))


def _parts_of_sequences(
    path: str, recorded: tuple[object, ...], specified: tuple[object, ...], width: int
) -> Iterator[Part]:
    pairs = zip_longest(recorded, specified, fillvalue=_ABSENT)
    at, (one, other) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    if _alike(one, other):
        yield from parts(f"{path}[{at}]", one, other, width)
    else:
        lengths = "" if len(recorded) == len(specified) else _lengths(recorded, specified)
        yield Part(
            f"{path}[{at}]{lengths}", _listed(recorded[at:], width), _listed(specified[at:], width)
        )


def _lengths(recorded: tuple[object, ...], specified: tuple[object, ...]) -> str:
    return f" ({len(recorded)} recorded, {len(specified)} specified)"


def _alike(one: object, other: object) -> bool:
    return type(one) is type(other) and (isinstance(one, dict) or bool(_fields(one)))


def _fields(value: object) -> tuple[str, ...]:
    """The attributes of a record; none of anything else."""
    kind = type(value)
    return tuple(field.name for field in attrs.fields(kind)) if attrs.has(kind) else ()


def _step(key: object) -> str:
    return key if isinstance(key, str) and re.fullmatch(r"[\w-]{1,40}", key) else repr(key)


def _shown(value: object) -> str:
    """A value on one line. repr writes out all that does not print."""
    if value is None or value is _ABSENT:
        return NOTHING
    if isinstance(value, tuple):
        return _listed(value, None) if value else "()"
    return repr(value)


def _listed(items: Iterable[object], width: int | None) -> str:
    """Items up to the width, and how many more there are; the first is shown in any case."""
    texts = [repr(item) for item in items]
    if not texts:
        return NOTHING
    line = ", ".join(texts)
    if width is None or len(line) <= width:
        return line
    more, used, kept = len(texts) - 1, len(texts[0]), 1
    while more and used + 2 + len(texts[kept]) + len(f", … {more - 1} more") <= width:
        used += 2 + len(texts[kept])
        kept, more = kept + 1, more - 1
    if not more:
        return _cut(line, width)
    tail = f", … {more} more"
    return _cut(", ".join(texts[:kept]), width - len(tail)) + tail


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 1)] + "…"


def plain(value: object) -> object:
    """A value as JSON takes it: records and mappings are objects, sequences are lists, and what is
    neither, nor JSON already, is told by its name or its repr."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case frozenset():
            return [plain(item) for item in sorted(value, key=repr)]
        case tuple() | list():
            return [plain(item) for item in value]
        case Enum():
            return value.name
        case None | str() | int() | float():
            return value
        case _ if fields := _fields(value):
            return {name: plain(getattr(value, name)) for name in fields}
    return repr(value)
