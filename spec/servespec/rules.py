"""The register of rules: which function says what, and which code of a real engine it mirrors.

A rule is written once, as a function, and marked with its number. Its statement is the first
paragraph of the function's docstring. Numbers 1 to 37 are the rules that the recordings of
vLLM 0.33.0 pin down; letters are rules of other policies and of the machine itself. The table
in `spec/README.md` is made from here.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import TypeVar

from attrs import frozen

F = TypeVar("F", bound=Callable[..., object])


@frozen
class Rule:
    number: str
    statement: str
    function: str
    engine: str
    """Where the rule stands in vLLM 0.33.0, or the engine or paper that it is taken from."""


RULES: list[Rule] = []


def statement_of(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(cleandoc(documented.__doc__ or "").split("\n\n")[0].split())


def rule(*numbers: str, engine: str) -> Callable[[F], F]:
    """Mark a function as the one place of the rules with these numbers."""

    def mark(function: F) -> F:
        place = f"{function.__module__}.{function.__qualname__}"
        RULES.extend(Rule(n, statement_of(function), place, engine) for n in numbers)
        return function

    return mark
