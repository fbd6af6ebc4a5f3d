"""Between the values of `model` and JSON, strictly.

There is no list of fields here: the attrs classes are the table (`shape`). Out, a value becomes an
object of its attributes, and one of several kinds also says which, by the name of its class in
`type`. In, `_decoder` builds once for a shape the function that takes a JSON value to a value of
that type. Nothing is skipped, guessed or converted: an unknown field, a missing one, `true` for 1,
1.0 for 1 is refused. A decoder knows only its own value; each level adds its step to the path of a
refusal as the exception passes through it, so a good line pays nothing for its address.

The names in `type` are looked up among the classes that the shape allows. Reading executes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar, assert_never, get_args

import attrs
import orjson

from servecheck.strict import (
    ADD,
    Decode,
    Refused,
    fields_of,
    flag,
    number,
    shown,
    text,
    whole,
    wrong,
)
from servecheck.trace.model import Hex, TracedEvent
from servecheck.trace.shape import (
    Bounds,
    Choice,
    Flag,
    Items,
    Maybe,
    Number,
    OneOf,
    Record,
    Shape,
    Text,
    Whole,
    record_of,
    shape_of,
)
from servespec.actions import Action
from servespec.errors import ConfigError, SpecError
from servespec.events import Reason

T = TypeVar("T")

RENAME = "use texts in Unicode and numbers of at most 64 bits"


# --- out -----------------------------------------------------------------------------------

_TAGGED = frozenset((*get_args(Action), *get_args(TracedEvent)))
"""Classes that say in `type` which they are."""


def encode(value: object) -> bytes:
    """A value as JSON on one line, fields in the order of the class.

    Raises:
        Refused: it holds a text that is no Unicode, or a number of more than 64 bits.
    """
    return _dumped(value, 0)


def canonical(value: object) -> bytes:
    """A value as JSON with its keys sorted."""
    return _dumped(value, orjson.OPT_SORT_KEYS)


def _dumped(value: object, option: int) -> bytes:
    try:
        return orjson.dumps(value, default=_fields, option=option)
    except orjson.JSONEncodeError as error:
        raise Refused(f"cannot be written ({error})", RENAME, _culprit(value)) from None


def _culprit(value: object) -> list[str | int]:
    """The path, innermost step first, to the first part of a value that has no JSON form."""
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, tuple):
        inner = enumerate(value)
    elif attrs.has(type(value)):
        inner = _fields(value).items()
    for step, item in inner:
        try:
            orjson.dumps(item, default=_fields)
        except orjson.JSONEncodeError:
            return [*_culprit(item), step]
    return []


def _fields(value: object) -> dict[str, object]:
    """The object that a value is written as. What is None by default is left out if it is None."""
    kind = type(value)
    if not attrs.has(kind):
        raise TypeError(f"no JSON form is defined for {kind.__name__}")
    found: dict[str, object] = {"type": kind.__name__} if kind in _TAGGED else {}
    for attribute in attrs.fields(kind):
        item: object = getattr(value, attribute.name)
        if item is None and attribute.default is None:
            continue
        # A reason by its name: its value is prose.
        found[attribute.name] = item.name if isinstance(item, Reason) else item
    return found


# --- in ------------------------------------------------------------------------------------


def decode(kind: type[T], value: object) -> T:
    """The value of class `kind` that a JSON value stands for.

    Raises:
        Refused: it stands for none.
    """
    annotation: object = kind
    found = _decoder(shape_of(annotation))(value)
    assert isinstance(found, kind)
    return found


@cache
def _decoder(shape: Shape) -> Decode[object]:
    """The function that takes a JSON value to a value of this shape."""
    match shape:
        case Whole(bounds):
            return _whole(bounds)
        case Number(bounds):
            return _number(bounds)
        case Flag():
            return flag
        case Text():
            return text
        case Hex(digits):
            return _hex(digits)
        case Choice(values):
            return _choice(dict(values))
        case Items(of, fewest):
            return _items(of, _decoder(of), fewest)
        case Maybe(of):
            some = _decoder(of)
            return lambda value: None if value is None else some(value)
        case OneOf(kinds):
            return _one_of({kind.__name__: kind for kind in kinds})
        case Record():
            return _record(shape)
        case _:
            assert_never(shape)


def _hex(digits: int) -> Decode[str]:
    wanted = f"{digits} hex digits"

    def take(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
            return value
        raise wrong(wanted, value)

    return take


def _whole(bounds: Bounds) -> Decode[int]:
    def take(value: object) -> int:
        found = whole(value)
        if found < bounds.least:
            raise wrong(f"a whole number ≥ {bounds.least}", value)
        return found

    return take


def _number(bounds: Bounds) -> Decode[float]:
    below = math.inf if bounds.below is None else bounds.below

    def take(value: object) -> float:
        found = number(value)
        if not bounds.least <= found < below:
            raise wrong(f"a number ≥ {bounds.least} and < {below}", value)
        return found

    return take


def _choice(choices: dict[str | int, object]) -> Decode[object]:
    wanted = f"one of {', '.join(map(shown, choices))}"

    def take(value: object) -> object:
        # `type`, not isinstance, keeps booleans out.
        if type(value) in (str, int) and value in choices:
            return choices[value]
        raise wrong(wanted, value)

    return take


def _items(of: Shape, take: Decode[object], fewest: int) -> Decode[tuple[object, ...]]:
    least = of.bounds.least if isinstance(of, Whole) else None

    def items(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise wrong("a list", value)
        if len(value) < fewest:
            raise wrong(f"a list of at least {fewest}", value)
        if least is not None and set(map(type, value)) <= {int} and min(value, default=0) >= least:
            # Most of a trace is such lists.
            return tuple(value)
        found: list[object] = []
        for position, item in enumerate(value):
            try:
                found.append(take(item))
            except Refused as refused:
                raise refused.under(position) from None
        return tuple(found)

    return items


def _one_of(kinds: dict[str, type[attrs.AttrsInstance]]) -> Decode[object]:
    """Takes an object that says in `type` which of the kinds it is."""
    name = _choice({kind: kind for kind in kinds})

    def take(value: object) -> object:
        fields = dict(fields_of(value))
        if "type" not in fields:
            raise Refused("missing", ADD).under("type")
        try:
            kind = kinds[str(name(fields.pop("type")))]
        except Refused as refused:
            raise refused.under("type") from None
        return _decoder(record_of(kind))(fields)

    return take


def _record(shape: Record) -> Decode[object]:
    """Takes an object to a value of its class."""
    make: Callable[..., object] = shape.kind
    named = {member.name: member.needed for member in shape.members}
    takes = {member.name: _decoder(member.shape) for member in shape.members}

    def take(value: object) -> object:
        made: dict[str, object] = {}
        for name, item in fields_of(value).items():
            if name not in takes:
                raise Refused("there is no such field", "take it out").under(name)
            try:
                made[name] = takes[name](item)
            except Refused as refused:
                raise refused.under(name) from None
        for name, needed in named.items():
            if needed and name not in made:
                raise Refused("missing", ADD).under(name)
        try:
            return make(**made)
        except ConfigError as error:
            raise Refused(error.what, error.remedy).under(error.where) from None
        except SpecError as error:
            raise Refused(f"{error.where}: {error.what}", error.remedy) from None

    return take
