"""Reads a trace from its file, strictly: a line is taken whole or refused with its address.

The first line says what the file is, and is asked for format and version before anything else is
read of it. The lines of actions are numbered from 0 without gaps. A verdict ends the file. A file
that ends without one is a run that was cut short, which is no error; a last line that was cut is.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

from attrs import define, field

from servecheck.strict import Refused, fields_of, parse
from servecheck.trace.codec import decode
from servecheck.trace.model import FORMAT, VERSION, Header, Line, Trace, TraceError, Verdict
from servespec.errors import ConfigError
from servespec.machine import Machine


def read_trace(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        TraceError: naming file, line and field; it cannot be read, or is no trace of version 1.
    """
    try:
        *texts, rest = path.read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        advice = "give a path to a trace that can be read"
        raise TraceError(path, None, None, f"cannot be read ({why})", advice) from None
    found = _Reading()
    for number, text in enumerate(texts, start=1):
        try:
            found.take(parse(text))
        except Refused as refused:
            raise TraceError(
                path, number, refused.where, refused.what, refused.what_to_do
            ) from None
    if rest:
        # Without its first line it is no trace, so there is nothing to keep of it.
        kept = f"keep its first {len(texts)} lines" if len(texts) > 1 else "keep its first line"
        advice = f"take a whole copy of it, or {kept if texts else 'record the run again'}"
        raise TraceError(path, len(texts) + 1, None, "the line is cut", advice)
    if found.header is None:
        raise TraceError(path, None, None, "the file is empty", "record the run again")
    return Trace(path, found.header, tuple(found.lines), found.verdict)


def listed(folder: Path, pattern: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files in a folder whose names match, in the order of their names, and what is wrong with
    what else is called so: whoever opens a named pipe waits for ever. A folder that is not there
    is empty; of one that cannot be listed that is said.
    """
    files: list[Path] = []
    useless: list[str] = []
    try:
        names = sorted(fnmatch.filter(os.listdir(folder), pattern))
    except FileNotFoundError:
        names = []
    except OSError as error:
        names = []
        why = f"cannot be listed ({error.strerror or error})"
        useless.append(str(TraceError(folder, None, None, why, "name a folder that can be read")))
    for name in names:
        file = folder / name
        if os.path.isfile(file):
            files.append(file)
        elif os.path.lexists(file):  # another run may have taken it away meanwhile
            wrong = TraceError(file, None, None, "is no regular file", "take it out of the folder")
            useless.append(str(wrong))
    return tuple(files), tuple(useless)


@define
class _Reading:
    """What has been read so far."""

    header: Header | None = None
    lines: list[Line] = field(factory=list)
    verdict: Verdict | None = None

    def take(self, value: object) -> None:
        """Take in one line."""
        fields = fields_of(value)
        if self.header is None:
            self.header = _header(fields)
        elif self.verdict is not None:
            raise Refused("a line stands behind the verdict", "take it out")
        elif "verdict" in fields:
            self.verdict = _verdict(fields)
        else:
            line = decode(Line, fields)
            if line.n != len(self.lines):
                what = f"expected {len(self.lines)}, found {line.n}"
                raise Refused(what, "put the lines in order, none missing").under("n")
            self.lines.append(line)


def _header(fields: dict[str, object]) -> Header:
    form, version = fields.get("format"), fields.get("version")
    if form != FORMAT:
        raise Refused("this is no trace", f'its first line must say "{FORMAT}"').under("format")
    if version != VERSION or isinstance(version, bool) or not isinstance(version, int):
        advice = f"this reads version {VERSION}: read it by the servecheck that wrote it"
        raise Refused(f"version {version!r} is not known", advice).under("version")
    header = decode(Header, fields)
    try:
        Machine(header.config, header.policy)
    except ConfigError as error:
        raise Refused(error.what, error.remedy).under(error.where).under("config") from None
    return header


def _verdict(fields: dict[str, object]) -> Verdict:
    found = decode(Verdict, fields)
    fell = found.verdict == "falls"
    if fell != (found.property is not None):
        what = "which property fell is not said" if fell else "a property is named, and none fell"
        raise Refused(what, "name the property that fell, and only that").under("property")
    return found
