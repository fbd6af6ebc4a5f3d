"""The JSON Schema of a line of a trace, made from the shapes that the reader takes.

Theory of operation. A line is a header, an action or a verdict; in the schema (Draft 2020-12) it is
one of three objects, and every class that is met is a definition under its name. What the schema
refuses, the reader refuses. What only the reader can see is in `READER_ALONE`.

    {"oneOf": [Header, Line, Verdict], "$defs": {"Header": …, "Submit": …, …}}
"""

from __future__ import annotations

import json
from typing import assert_never

import attrs

from servecheck.trace.model import FORMAT, VERSION, Header, Hex, Line, Verdict
from servecheck.trace.shape import (
    HIGHEST,
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
)

Json = dict[str, object]

DRAFT = "https://json-schema.org/draft/2020-12/schema"

READER_ALONE = (
    "a key that stands twice in an object",
    "a whole number that is written with a point or an exponent: 1.0 for 1",
    "text behind the hex digits of a key or a digest that a schema does not see: a line feed",
    "sizes and choices that contradict each other",
    "lines out of order: the header is first, actions are numbered from 0, a verdict is last",
    "a line that is cut, or is no JSON, or no UTF-8",
)
"""What the schema lets pass and the reader refuses. That events, digests and snapshots are what the
actions lead to is not seen by reading at all: `servecheck replay` does."""


def trace_schema() -> Json:
    """The schema of one line."""
    defs: dict[str, Json] = {}
    lines = [_reference(kind, defs) for kind in (Header, Line, Verdict)]
    defs["Verdict"].update(_PROPERTY_IFF_FALLS)
    return {
        "$schema": DRAFT,
        "title": f"A line of a {FORMAT}, version {VERSION}",
        "description": "The first line is a Header, the last may be a Verdict, all others are "
        f"Lines. The reader refuses besides: {'; '.join(READER_ALONE)}.",
        "oneOf": lines,
        "$defs": {name: defs[name] for name in sorted(defs)},
    }


def schema_text() -> str:
    """The schema as it is committed."""
    return json.dumps(trace_schema(), indent=2, ensure_ascii=False) + "\n"


_PROPERTY_IFF_FALLS: Json = {
    "if": {"properties": {"verdict": {"const": "falls"}}},
    "then": {"required": ["property"], "properties": {"property": {"type": "string"}}},
    "else": {"properties": {"property": {"type": "null"}}},
}
"""A verdict names a property if, and only if, one fell (`read` says the same in code)."""


def _reference(kind: type[attrs.AttrsInstance], defs: dict[str, Json], tag: bool = False) -> Json:
    """A reference to the definition of a class, which is made if it is not there."""
    name = kind.__name__
    if name not in defs:
        defs[name] = {}  # its place, so that a class may hold itself
        defs[name] = _object(record_of(kind), defs, tag)
    return {"$ref": f"#/$defs/{name}"}


def _object(record: Record, defs: dict[str, Json], tag: bool) -> Json:
    name = record.kind.__name__
    properties: Json = {"type": {"const": name}} if tag else {}
    properties |= {member.name: _schema(member.shape, defs) for member in record.members}
    needed = [member.name for member in record.members if member.needed]
    found: Json = {
        "type": "object",
        "additionalProperties": False,
        "required": ["type", *needed] if tag else needed,
        "properties": properties,
    }
    said = (record.kind.__doc__ or "").partition("\n\n")[0]
    return {"description": " ".join(said.split()), **found} if said else found


def _schema(shape: Shape, defs: dict[str, Json]) -> Json:
    match shape:
        case Whole(bounds):
            return {"type": "integer", "minimum": bounds.least, "maximum": HIGHEST}
        case Number(bounds):
            top = {} if bounds.below is None else {"exclusiveMaximum": bounds.below}
            return {"type": "number", "minimum": bounds.least, **top}
        case Flag():
            return {"type": "boolean"}
        case Text():
            return {"type": "string"}
        case Hex(digits):
            return {"type": "string", "pattern": f"^[0-9a-f]{{{digits}}}$"}
        case Choice(values):
            names = [name for name, _ in values]
            return {"const": names[0]} if len(names) == 1 else {"enum": names}
        case Items(of, fewest):
            least = {"minItems": fewest} if fewest else {}
            return {"type": "array", "items": _schema(of, defs), **least}
        case Maybe(of):
            return {"anyOf": [{"type": "null"}, _schema(of, defs)]}
        case OneOf(kinds):
            return {"oneOf": [_reference(kind, defs, tag=True) for kind in kinds]}
        case Record(kind):
            return _reference(kind, defs)
        case _:
            assert_never(shape)
