"""Between the values of `model` and JSON, strictly.

There is no list of fields here: the attrs classes are the table. Out, a value becomes an object of
its attributes, and one of several kinds also says which, by the name of its class in `type`. In,
`_decoder` builds once for an annotation the function that takes a JSON value to a value of that
type. Nothing is skipped, guessed or converted: an unknown field, a missing one, `true` for 1, 1.0
for 1 is refused. A decoder knows only its own value; each level adds its step to the path of a
refusal as the exception passes through it, so a good line pays nothing for its address.

The names in `type` are looked up among the classes that an annotation allows. Reading executes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
from servecheck.trace.model import Digest, Key, TracedEvent
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
    annotation: type = kind
    found = _decoder(annotation)(value)
    assert isinstance(found, kind)
    return found


def _hex(digits: int) -> Decode[str]:
    wanted = f"{digits} hex digits"

    def take(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
            return value
        raise wrong(wanted, value)

    return take


@cache
def _decoder(kind: object) -> Decode[object]:
    """The function that takes a JSON value to a value of type `kind`."""
    if kind in _LEAVES:
        return _LEAVES[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _choice({part: part for part in parts})
    if origin in (Union, UnionType):
        if NoneType not in parts:
            return _one_of({part.__name__: part for part in parts})
        (some,) = (_decoder(part) for part in parts if part is not NoneType)
        return lambda value: None if value is None else some(value)
    if origin is tuple and parts[1] is Ellipsis:
        return _items(_decoder(parts[0]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice({m.name if kind is Reason else m.value: m for m in kind})
    if isinstance(kind, type) and attrs.has(kind):
        return _record(kind)
    raise TypeError(f"no JSON form is defined for the annotation {kind}")


def _choice(choices: dict[str, object]) -> Decode[object]:
    wanted = f"one of {', '.join(map(shown, choices))}"

    def take(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise wrong(wanted, value)

    return take


def _items(take: Decode[object]) -> Decode[tuple[object, ...]]:
    def items(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise wrong("a list", value)
        if take is whole and set(map(type, value)) <= {int}:
            # Most of a trace is such lists; `type`, not isinstance, keeps booleans out.
            return tuple(value)
        found: list[object] = []
        for position, item in enumerate(value):
            try:
                found.append(take(item))
            except Refused as refused:
                raise refused.under(position) from None
        return tuple(found)

    return items


def _one_of(kinds: dict[str, type]) -> Decode[object]:
    """Takes an object that says in `type` which of the kinds it is."""
    name = _choice(dict(zip(kinds, kinds, strict=True)))

    def take(value: object) -> object:
        fields = dict(fields_of(value))
        if "type" not in fields:
            raise Refused("missing", ADD).under("type")
        try:
            kind = kinds[str(name(fields.pop("type")))]
        except Refused as refused:
            raise refused.under("type") from None
        return _decoder(kind)(fields)

    return take


def _record(kind: type[attrs.AttrsInstance]) -> Decode[object]:
    """Takes an object to a `kind`: all its attributes (those with a default may be absent)."""
    make: Callable[..., object] = kind
    hints = get_type_hints(kind, include_extras=True)
    named = {item.name: item.default is attrs.NOTHING for item in attrs.fields(kind)}
    takes = {name: _decoder(hints[name]) for name in named}

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


_LEAVES: dict[object, Decode[object]] = {
    int: whole,
    float: number,
    bool: flag,
    str: text,
    Key: _hex(64),
    Digest: _hex(16),
}
