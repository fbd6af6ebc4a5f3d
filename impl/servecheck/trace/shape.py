"""What JSON stands for a value: shapes, read once off the annotations of the attrs classes.

Theory of operation. There is no list of fields anywhere: the classes of `model`, and those of the
specification that a trace shows, are the table. `shape_of` takes an annotation to a shape; the
codec makes decoders of shapes, `schema` makes the JSON Schema of them, so the two cannot part. What
an annotation does not say is in `BOUNDS`: how small a number may be, and which lists may not be
empty.

    annotation ──▶ shape_of ──▶ Shape ──▶ codec: JSON ──▶ value, or Refused
                                     └──▶ schema: JSON Schema
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from servecheck.trace.model import Header, Hex, SeenEntry, SeenRequest
from servespec.actions import Submit
from servespec.config import Config, least
from servespec.events import Reason

LOWEST, HIGHEST = -(2**63), 2**64 - 1
"""Whole numbers that are read: those that have 64 bits."""


@frozen
class Bounds:
    """What a number in a field must lie in, the items of a list included."""

    least: int = 0
    below: int | None = None
    """None: as high as numbers go."""
    items: int = 0
    """Fewest items of the list itself."""


BOUNDS: dict[tuple[type, str], Bounds] = {
    (Header, "seed"): Bounds(LOWEST),
    (Submit, "priority"): Bounds(LOWEST),
    (Submit, "prompt"): Bounds(items=1),
    (Submit, "max_tokens"): Bounds(1),
    # -1 stands for a padded draft.
    (SeenRequest, "drafts"): Bounds(-1),
    (SeenEntry, "drafts"): Bounds(-1),
    (SeenEntry, "tokens"): Bounds(-1),
    (Config, "watermark"): Bounds(0, below=1),
    **{
        (Config, size.name): Bounds(least(size.name))
        for size in attrs.fields(Config)
        if size.name != "watermark"
    },
}
"""Where numbers are not simply 0 or more."""

COUNTING = frozenset(kind.__module__ for kind in (Header, Submit, Reason, Config))
"""Modules whose classes hold counts, positions, tokens and block numbers: never less than 0, so
that a block number of -1 is not read as the last block. In other classes a number may be any."""


@frozen
class Whole:
    bounds: Bounds


@frozen
class Number:
    bounds: Bounds


@frozen
class Flag:
    pass


@frozen
class Text:
    pass


@frozen
class Choice:
    """One of some texts or numbers, and the value that each stands for."""

    values: tuple[tuple[str | int, object], ...]


@frozen
class Items:
    of: Shape
    fewest: int


@frozen
class Maybe:
    """null, or a value."""

    of: Shape


@frozen
class OneOf:
    """An object that says in `type` which of these classes it is."""

    kinds: tuple[type[attrs.AttrsInstance], ...]


@frozen
class Member:
    """One field of an object."""

    name: str
    shape: Shape
    needed: bool
    """It may not be left out."""


@frozen
class Record:
    kind: type[attrs.AttrsInstance]
    members: tuple[Member, ...]


Shape = Whole | Number | Flag | Text | Hex | Choice | Items | Maybe | OneOf | Record


@cache
def record_of(kind: type[attrs.AttrsInstance]) -> Record:
    """The shape of an object of this class: all its attributes; those with a default may be left
    out."""
    hints = get_type_hints(kind, include_extras=True)
    plain = Bounds() if kind.__module__ in COUNTING else Bounds(LOWEST)
    return Record(
        kind,
        tuple(
            Member(
                item.name,
                shape_of(hints[item.name], BOUNDS.get((kind, item.name), plain)),
                item.default is attrs.NOTHING,
            )
            for item in attrs.fields(kind)
        ),
    )


def shape_of(kind: object, bounds: Bounds | None = None) -> Shape:
    """The shape of what an annotation allows, its numbers within bounds."""
    bounds = bounds or Bounds(LOWEST)
    if kind in _LEAVES:
        return _LEAVES[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if kind is int:
        return Whole(bounds)
    if kind is float:
        return Number(bounds)
    if len(parts) == 2 and isinstance(parts[1], Hex):
        return parts[1]
    if origin is Literal:
        return Choice(tuple((part, part) for part in parts))
    if origin in (Union, UnionType):
        if NoneType not in parts:
            return OneOf(parts)
        (some,) = (part for part in parts if part is not NoneType)
        return Maybe(shape_of(some, bounds))
    if origin is tuple and parts[1] is Ellipsis:
        return Items(shape_of(parts[0], bounds), bounds.items)
    if isinstance(kind, type) and issubclass(kind, Enum):
        # A reason by its name: its value is prose.
        return Choice(tuple((m.name if kind is Reason else m.value, m) for m in kind))
    if isinstance(kind, type) and attrs.has(kind):
        return record_of(kind)
    raise TypeError(f"no JSON form is defined for the annotation {kind}")


_LEAVES: dict[object, Shape] = {bool: Flag(), str: Text()}
