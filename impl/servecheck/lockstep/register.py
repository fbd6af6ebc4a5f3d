"""Registers: TOML files of tables of one kind, read strictly.

Theory of operation. A register is a list of `[[kind]]` tables and nothing else. `tables` reads it,
and demands of each table that every field it must have is there and none that nobody knows. What a
field must be is asked by `Table.text` and `Table.texts`. Whatever is wrong is a `RegisterError`
that names file, table and field, and says what to do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

from attrs import define, frozen


@define(eq=False)
class RegisterError(Exception):
    """A register that cannot be read. `str` gives one line: where, what, what to do."""

    file: Path
    where: str | None
    what: str
    what_to_do: str

    def __str__(self) -> str:
        where = "" if self.where is None else f", {self.where}"
        return f"{self.file}{where}: {self.what}; {self.what_to_do}"


@frozen
class Table:
    """One entry of a register."""

    file: Path
    where: str
    fields: dict[str, object]

    def wrong(self, name: str, what: str, what_to_do: str = "mend it") -> RegisterError:
        """The error that a field of this table is."""
        return RegisterError(self.file, f"{self.where}, field {name}", what, what_to_do)

    def text(self, name: str) -> str:
        """A field that must be a text, and say something."""
        value = self.fields[name]
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"expected a text, found {value!r}")
        return value

    def texts(self, name: str, known: Collection[str] | None, of: str) -> tuple[str, ...]:
        """A field that must be a list of texts, each of them known; empty if it is left out."""
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, f"expected a list of texts, found {value!r}")
        for part in value:
            if not isinstance(part, str) or not part:
                raise self.wrong(name, f"expected a text, found {part!r}")
            if known is not None and part not in known:
                raise self.wrong(name, f"{part!r} is unknown", f"take {of}")
        return tuple(value)


def tables(
    file: Path, kind: str, needed: Collection[str], optional: Collection[str] = ()
) -> Iterator[Table]:
    """The tables of a register, whose `id`s are all different.

    Raises:
        RegisterError: it cannot be read, or is not what it should be.
    """
    advice = f"write [[{kind}]] tables"
    try:
        told: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
        raise RegisterError(file, None, why, "name another file") from None
    except ValueError as error:
        raise RegisterError(file, None, f"this is no TOML ({error})", "mend it") from None
    found = told.pop(kind, [])
    for name in told:
        raise RegisterError(file, name, "this field is unknown", advice)
    if not isinstance(found, list):
        raise RegisterError(file, kind, "this is no list", advice)
    ids: set[object] = set()
    for number, fields in enumerate(found, 1):
        where = f"{kind} {number}"
        if not isinstance(fields, dict):
            raise RegisterError(file, where, "this is no table", advice)
        table = Table(file, where, {str(name): value for name, value in fields.items()})
        for name in table.fields:
            if name not in needed and name not in optional:
                raise table.wrong(name, "it is unknown", f"take one of {', '.join(needed)}")
        for name in needed:
            if name not in table.fields:
                raise table.wrong(name, "it is missing", "say it")
        if table.text("id") in ids:
            raise table.wrong("id", f"{table.fields['id']!r} stands twice")
        ids.add(table.fields["id"])
        yield table
