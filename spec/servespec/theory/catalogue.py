"""Looking a name up in a catalogue: the entry, or an error that offers the nearest names.

Nearest are those that begin with what was asked for, such as every "a100"; if there are none, those
that are spelt most alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from servespec.errors import ConfigError

T = TypeVar("T")


def found(kind: str, name: str, catalogue: Mapping[str, T]) -> T:
    """The entry of this name; upper case, blanks and underscores are forgiven.

    Raises:
        ConfigError: there is none.
    """
    asked = name.strip().lower()
    for spelt in (asked, asked.replace(" ", "-").replace("_", "-")):
        if spelt in catalogue:
            return catalogue[spelt]
    begun = [entry for entry in catalogue if asked and entry.startswith(asked)]
    near = begun or get_close_matches(asked, catalogue, cutoff=0.5)
    offered = ", ".join(near or catalogue)
    remedy = f"the nearest: {offered}" if near else f"choose of {offered}"
    raise ConfigError(kind, f"{name!r} is not known", remedy)
