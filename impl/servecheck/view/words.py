"""Texts that are shown: on one line, cut to a width that is known without a font.

An id may hold anything. `plain` writes out all that does not print, and the backslash itself, so
that different ids stay different and no picture, XML or DOT is broken by one. Widths are counted in
columns of a fixed-width font, of which a character of East Asian width takes two.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import east_asian_width

from servespec.chain import PUBLIC, Namespace

SPACE, EMPTY = r"\x20", r"\empty"


def plain(text: str) -> str:
    """`text` on one line, and nothing of it invisible; no two texts become the same."""
    escaped = text.replace("\\", "\\\\")
    inner = escaped.strip(" ")
    before = len(escaped) - len(escaped.lstrip(" "))
    after = len(escaped) - before - len(inner)
    written = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in inner
    )
    return SPACE * before + written + SPACE * after or EMPTY


def namespace_name(namespace: Namespace) -> str:
    """`public`, or adapter and salt, so that no two namespaces have one name."""
    if namespace == PUBLIC:
        return "public"
    parts = (("adapter", namespace.adapter), ("salt", namespace.salt))
    return ", ".join(f"{kind} {_quoted(text)}" for kind, text in parts if text is not None)


def _quoted(text: str) -> str:
    inner = plain(text).replace('"', '\\"')
    return f'"{inner}"'


def columns(text: str) -> int:
    """How many columns a text takes."""
    return len(text) + sum(east_asian_width(c) in "WF" for c in text if c > "\u10ff")


def cut(text: str, most: int) -> str:
    """`text`, or as much of it as `most` columns hold, ended by an ellipsis."""
    if columns(text) <= most:
        return text
    kept, left = 0, most - 1
    for c in text:
        left -= columns(c)
        if left < 0:
            break
        kept += 1
    return f"{text[:kept]}…"


def listed(items: Iterable[object], most: int) -> str:
    """At most so many items, and how many more there are."""
    texts = [str(item) for item in items]
    more = f", … {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def wrapped(text: str, most: int, lines: int) -> list[str]:
    """`text` broken at spaces into lines of at most `most` columns; the last may be cut."""
    found: list[str] = []
    words = text.split(" ")
    while words and len(found) < lines:
        line = words.pop(0)
        while words and columns(line) + 1 + columns(words[0]) <= most:
            line += f" {words.pop(0)}"
        if words and len(found) == lines - 1:
            line += f" {' '.join(words)}"
        found.append(cut(line, most))
    return found
