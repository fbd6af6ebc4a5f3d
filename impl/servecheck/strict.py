"""JSON taken strictly: values, and refusals that know where they are.

Recordings, traces and the protocol of engines all read JSON that others wrote, and none of them may
skip, guess or convert: an unknown key, `true` for 1, 1.0 for 1, a key that stands twice is refused.
A decoder knows only its own value; each level adds its step to the path of a refusal as the
exception passes through it, so a good line pays nothing for its address. Who reads a file turns a
`Refused` into a `FileError` of its own, with the file and the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import orjson
from attrs import define, field

T = TypeVar("T")
Decode = Callable[[object], T]
"""Takes a JSON value to what it stands for, or refuses it."""

MEND = "mend it, or record the run again"
ADD = "add it, or record the run again"


@define(eq=False)
class FileError(Exception):
    """A file that others wrote and that cannot be read, or one that cannot be written. `str` gives
    one line: where, what, what to do."""

    file: Path
    line: int | None
    """From 1; None where the complaint is about the file or not about one line of it."""
    field: str | None
    """Path of the field inside the line, such as `events[0].key`."""
    what: str
    what_to_do: str

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        inside = "" if self.field is None else f", field {self.field}"
        return f"{self.file}{line}{inside}: {self.what}; {self.what_to_do}"


@define(eq=False)
class Refused(Exception):
    """A value that is not what it should be; the path to it grows as this passes upward."""

    what: str
    what_to_do: str = MEND
    path: list[str | int] = field(factory=list)
    """Innermost step first."""

    def under(self, step: str | int) -> Refused:
        self.path.append(step)
        return self

    @property
    def where(self) -> str | None:
        """The path as it is shown, outermost step first."""
        steps = [f"[{step}]" if isinstance(step, int) else f".{plain(step)}" for step in self.path]
        return "".join(reversed(steps)).removeprefix(".") or None


@define(eq=False)
class NotJson(Refused):
    """A text that is no JSON; `line` is the line of the text, from 1."""

    line: int = 1


def parse(text: bytes) -> object:
    """The value of a JSON text without NaN, infinities and keys that stand twice."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NotJson(f"not JSON from column {error.colno} on", line=error.lineno) from None
    try:
        same = orjson.dumps(value) == text
    except orjson.JSONEncodeError:
        raise Refused("nested too deep") from None
    if not same:
        # orjson lets the last of two equal keys win. A text that is written back unchanged has
        # no such pair; only the others are worth a second, slower look.
        json.loads(text, object_pairs_hook=_distinct, parse_int=str)
    return value


def _distinct(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise Refused(f"key {shown(key)} stands twice", "keep one of the two")
        seen.add(key)


def shown(value: object) -> str:
    """A JSON value as JSON, on one line, cut short."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else f"{text[:39]}…"


def plain(key: str) -> str:
    """A key as it is, if it is a plain word; else as JSON."""
    return key if re.fullmatch(r"[\w-]{1,40}", key) else shown(key)


# --- values ----------------------------------------------------------------------------------


def wrong(wanted: str, value: object) -> Refused:
    return Refused(f"expected {wanted}, found {shown(value)}")


def fields_of(value: object) -> dict[str, object]:
    """A JSON object."""
    if isinstance(value, dict):
        return value
    raise wrong("an object", value)


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise wrong("a string", value)


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong("true or false", value)


def whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise wrong("a whole number of at most 64 bits", value)


def number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise wrong("a number", value)
