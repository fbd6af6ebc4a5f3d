"""The register of theorems: which function states what.

As with rules (`servespec.rules`), the statement is the first paragraph of the function's docstring,
and the table in `spec/README.md` is made from here. A module is in the register once it is
imported; `servecheck.document` imports all of `servespec.theory`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from attrs import frozen

from servespec.errors import SpecError
from servespec.rules import statement_of

F = TypeVar("F", bound=Callable[..., object])


class Kind(Enum):
    O = "order"  # noqa: E741  between two runs
    H = "hyperproperty"  # of runs that must look alike
    X = "exact"  # arithmetic


@frozen
class Theorem:
    id: str
    kind: Kind
    statement: str
    function: str
    """Where it is stated: module and name."""
    states: Callable[..., object]
    """The function itself, which computes a side of the theorem or checks a case."""


THEOREMS: dict[str, Theorem] = {}


def theorem(name: str, kind: Kind) -> Callable[[F], F]:
    """Mark a function as the one place that states the theorem with this number.

    Raises:
        SpecError: another function states it, or the function says nothing.
    """

    def mark(function: F) -> F:
        place = f"{function.__module__}.{function.__qualname__}"
        known = THEOREMS.get(name)
        if known is not None and known.function != place:
            raise SpecError(name, f"is stated by {known.function}", "give each theorem one number")
        statement = statement_of(function)
        if not statement:
            raise SpecError(name, f"{place} says nothing", "state the theorem in its docstring")
        THEOREMS[name] = Theorem(name, kind, statement, place, function)
        return function

    return mark
