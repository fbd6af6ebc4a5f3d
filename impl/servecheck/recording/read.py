"""Reads a recording from its files, strictly: a line is taken whole or refused with its address.

A recording is evidence. Evidence that is half understood is worse than none, so nothing is
skipped, guessed or converted: an unknown field, a missing one, a number of the wrong kind, a key
that stands twice, a last line that was cut - each is a `RecordingError` which says what is wrong,
where (file, line, field) and what to do about it.

How it works. There is no list of fields here: the attrs classes of `model` are the table. For an
annotation, `_decoder` builds once the function that takes a JSON value to a value of that type;
a class takes exactly its attributes, those with a default being optional. What annotations cannot
say stands in a few small tables and in the functions for lines of several kinds. A decoder knows
only its own value: each level adds its step to the path of a failure as the exception passes
through it, so a good line pays nothing for its address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from servecheck.recording.model import (
    AbortLine,
    AllBlocksCleared,
    Arrival,
    BlockHash,
    BlockRemoved,
    BlockStored,
    CachedHash,
    Count,
    Event,
    Message,
    Name,
    OutcomeLine,
    PassLine,
    Recording,
    ResetLine,
    RunConfig,
    Sampled,
    StateLine,
    StepLine,
    Tokens,
    WorkloadLine,
)
from servecheck.strict import (
    ADD,
    MEND,
    Decode,
    FileError,
    NotJson,
    Refused,
    fields_of,
    flag,
    number,
    parse,
    plain,
    shown,
    text,
    whole,
    wrong,
)

T = TypeVar("T")
A = TypeVar("A", bound=attrs.AttrsInstance)

_BORROWED = {
    "nochunk": {"workload": "conv"},
    "dup_bytes_hashes": {"workload": "dup", "steps": "dup"},
}
"""Runs that repeat another one with a setting changed, and whose files they share."""

_RENAMED: dict[type, dict[str, str]] = {
    AbortLine: {"abort": "ids", "arrival_step": "step"},
    ResetLine: {"reset": "kind", "arrival_step": "step"},
    RunConfig: {
        "num_gpu_blocks": "num_gpu_blocks",
        "num_gpu_blocks (one is the null block)": "num_gpu_blocks",
    },
}
"""Wire name to attribute, where they differ."""

_GATHERED = {"pass_", "outcome"}
"""Attributes that no one field gives: `_step_line` gathers them from the flat line."""

_CUT = "the file was cut or edited: take a whole copy of it"
_FORMAT = "correct it: this reads recordings as made of vLLM 0.33.0, and no other form"


class RecordingError(FileError):
    """A recording that cannot be read."""


def read_recording(
    prefix: Path, *, workload: Path | None = None, steps: Path | None = None
) -> Recording:
    """The recording PREFIX: PREFIX.{workload,steps,events,state}.jsonl and config.json beside.

    `workload` and `steps` name other files to use instead. The state file may be absent.
    Raises RecordingError for anything missing, unreadable or not of the format.
    """
    name = prefix.name
    if not name:
        raise RecordingError(
            prefix, None, None, "no run is named", "give FOLDER/RUN, such as FOLDER/toy_fcfs"
        )
    borrowed = _BORROWED.get(name, {})

    def beside(kind: str) -> Path:
        return prefix.with_name(f"{borrowed.get(kind, name)}.{kind}.jsonl")

    release, config = _config(prefix.with_name("config.json"), name)
    state = beside("state")
    return Recording(
        name,
        release,
        config,
        _lines(workload or beside("workload"), _workload_line),
        _lines(steps or beside("steps"), _step_line),
        _lines(beside("events"), _class(Message)),
        _lines(state, _class(StateLine)) if state.exists() else None,
    )


def read_workload(path: Path) -> tuple[WorkloadLine, ...]:
    """The lines of one workload file, whatever its name is.

    Raises RecordingError for a file that is missing, unreadable or not of the format.
    """
    return _lines(path, _workload_line)


# --- Texts ----------------------------------------------------------------------------------------


def _at(refused: Refused, file: Path, line: int | None) -> RecordingError:
    """A refusal with its address."""
    advice = _CUT if isinstance(refused, NotJson) else refused.what_to_do
    advice = _FORMAT if advice == MEND else advice
    return RecordingError(file, line, refused.where, refused.what, advice)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        advice = "put it there; --workload and --steps may name files elsewhere"
        raise RecordingError(path, None, None, "there is no such file", advice) from None
    except (OSError, ValueError) as error:
        advice = "give a path to a file that can be read"
        raise RecordingError(path, None, None, f"cannot be read ({error})", advice) from None


def _lines(path: Path, decode: Decode[T]) -> tuple[T, ...]:
    found: list[T] = []
    *texts, rest = _read(path).split(b"\n")
    for at, line in enumerate(texts, start=1):
        try:
            found.append(decode(parse(line)))
        except Refused as refused:
            raise _at(refused, path, at) from None
    if rest:
        raise RecordingError(path, len(texts) + 1, None, "the last line has no line end", _CUT)
    return tuple(found)


def _config(path: Path, name: str) -> tuple[str, RunConfig]:
    """The release and the settings of run `name`. The file's other parts are notes for people."""
    try:
        file = fields_of(parse(_read(path)))
        release = _field(file, "vllm", text)
        known: list[str] = []
        for table in ("runs", "toy_runs"):
            runs = _field(file, table, fields_of) if table in file else {}
            known += runs
            if name in runs:
                try:
                    return release, _field(runs, name, _class(RunConfig))
                except Refused as refused:
                    raise refused.under(table) from None
    except Refused as refused:
        line = refused.line if isinstance(refused, NotJson) else None
        raise _at(refused, path, line) from None
    advice = f"read one of: {', '.join(map(plain, known)) or '(the file names none)'}"
    raise RecordingError(path, None, None, f"no run is named {shown(name)}", advice)


# --- Values ---------------------------------------------------------------------------------------


def _missing(name: str) -> Refused:
    return Refused("missing", ADD).under(name)


def _name(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise wrong("a string that is not empty", value)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise wrong("a whole number, 0 or more", value)


def _hash(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return value
    raise wrong("a hash (a whole number of 64 bits, or 64 hex digits)", value)


def _field(fields: dict[str, object], name: str, decode: Decode[T]) -> T:
    if name not in fields:
        raise _missing(name)
    try:
        return decode(fields[name])
    except Refused as refused:
        raise refused.under(name) from None


@cache
def _decoder(kind: object) -> Decode[object]:
    """The function that takes a JSON value to a value of type `kind`."""
    if kind in _LEAVES:
        return _LEAVES[kind]
    if kind == Sampled:
        tokens = _decoder(Tokens)
        return lambda value: tokens(value if isinstance(value, list) else [value])
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _choice(parts)
    if origin in (Union, UnionType):
        (some,) = (_decoder(part) for part in parts if part is not NoneType)
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        # Two shapes only: a list of one type, and `ById`, which is an object on the wire.
        (item, _) = parts
        inner = get_args(item)
        if get_origin(item) is tuple and inner[1] is not Ellipsis:
            return _by_id(_decoder(inner[1]))
        return _array(item)
    if isinstance(kind, type) and attrs.has(kind):
        return _class(kind)
    raise TypeError(f"no JSON form is defined for the annotation {kind}")


def _choice(choices: tuple[object, ...]) -> Decode[object]:
    wanted = f"one of {', '.join(map(shown, choices))}"

    def decode(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return value
        raise wrong(wanted, value)

    return decode


def _array(item: object) -> Decode[tuple[object, ...]]:
    take = _decoder(item)

    def decode(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise wrong("a list", value)
        if item == Count and set(map(type, value)) <= {int} and min(value, default=0) >= 0:
            # Most of a recording is such lists; `type`, not isinstance, keeps booleans out.
            return tuple(value)
        found: list[object] = []
        for position, element in enumerate(value):
            try:
                found.append(take(element))
            except Refused as refused:
                raise refused.under(position) from None
        return tuple(found)

    return decode


def _by_id(take: Decode[object]) -> Decode[tuple[tuple[str, object], ...]]:
    def decode(value: object) -> tuple[tuple[str, object], ...]:
        fields = fields_of(value)
        return tuple([(_name(key), _field(fields, key, take)) for key in fields])

    return decode


@cache
def _table(kind: type) -> dict[str, tuple[str, Decode[object]]]:
    """For each field on the wire, the attribute of `kind` that it gives, and its decoder."""
    hints = get_type_hints(kind, include_extras=True)
    renamed = _RENAMED.get(kind, {})
    plain = [name for name in hints if name not in _GATHERED.union(renamed.values())]
    wire = renamed | dict(zip(plain, plain, strict=True))
    return {key: (name, _decoder(hints[name])) for key, name in wire.items()}


def _class(kind: type[A]) -> Decode[A]:
    """Takes an object to a `kind`: all its attributes (those with a default may be absent)."""
    make: Callable[..., A] = kind
    required = {item.name for item in attrs.fields(kind) if item.default is attrs.NOTHING}

    def decode(value: object) -> A:
        table = _table(kind)
        made: dict[str, object] = {}
        for key, item in fields_of(value).items():
            if key not in table:
                raise Refused("there is no such field", "take it out").under(key)
            name, take = table[key]
            if name in made:
                raise Refused("given under two names", "keep one of the two").under(key)
            try:
                made[name] = take(item)
            except Refused as refused:
                raise refused.under(key) from None
        if not made.keys() >= required:
            absent = next(key for key, (name, _) in table.items() if name in required - made.keys())
            raise _missing(absent)
        return make(**made)

    return decode


# --- Lines of several kinds -----------------------------------------------------------------------


def _workload_line(value: object) -> WorkloadLine:
    line = fields_of(value)
    if "abort" in line:
        return _class(AbortLine)(line)
    if "reset" in line:
        return _class(ResetLine)(line)
    return _class(Arrival)(line)


def _step_line(value: object) -> StepLine:
    """A step line is flat on the wire: its fields tell whether it holds a pass and an outcome."""
    line = fields_of(value)
    pass_, line = _part(PassLine, line)
    outcome, line = _part(OutcomeLine, line)
    return attrs.evolve(_class(StepLine)(line), pass_=pass_, outcome=outcome)


def _part(kind: type[A], line: dict[str, object]) -> tuple[A | None, dict[str, object]]:
    """The fields of `line` that belong to `kind`, as one, and the other fields.

    One of them demands all: a line that lost some of a pass is refused, not read as without one.
    """
    table = _table(kind)
    mine = {name: item for name, item in line.items() if name in table}
    rest = {name: item for name, item in line.items() if name not in table}
    return (_class(kind)(mine) if mine else None), rest


def _event(value: object) -> Event:
    fields = fields_of(value)
    kind = _field(fields, "type", text)
    if kind not in _EVENTS:
        raise Refused(f"unknown event {shown(kind)}", _FORMAT).under("type")
    return _EVENTS[kind]({name: item for name, item in fields.items() if name != "type"})


def _cached_hash(value: object) -> CachedHash:
    match value:
        case [name, blocks]:
            return _class(CachedHash)({"hash": name, "blocks": blocks})
    raise wrong("a pair [hash, [blocks]]", value)


_LEAVES: dict[object, Decode[object]] = {
    int: whole,
    Count: _count,
    float: number,
    bool: flag,
    str: text,
    Name: _name,
    BlockHash: _hash,
    Event: _event,
    CachedHash: _cached_hash,
}

_EVENTS: dict[str, Decode[Event]] = {
    "BlockStored": _class(BlockStored),
    "BlockRemoved": _class(BlockRemoved),
    "AllBlocksCleared": _class(AllBlocksCleared),
}
