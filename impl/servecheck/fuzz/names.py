"""Ids of requests: texts that mean nothing, and that engines are tempted to read.

Theory of operation. Front ends number (r1, r10), append (one id for the request, another for each
of its samples), and let clients choose. An engine that looks ids up by their beginning, by lower
case, up to a separator or without trailing space takes one request for another. So each walk names
its requests in one of several ways; in all but the first one some ids resemble each other.
`resembling` gives ids that nobody has, and that such an engine takes for somebody's.
"""

from __future__ import annotations

from collections.abc import Callable

Naming = Callable[[int], str]
"""From a number to an id; different numbers, different ids."""

APPENDED = ("", "-0", " ", "_a", ":b", "/c")
TENS = 3


def letters(number: int) -> str:
    """a, b, … z, a1: none begins another among the first ones."""
    letter, turn = chr(ord("a") + number % 26), number // 26
    return f"{letter}{turn or ''}"


def numbers(number: int) -> str:
    """r1, r10, r100, r2, r20: each begins the next ones."""
    counted = number // TENS
    return f"r{counted + counted // 9 + 1}{'0' * (number % TENS)}"  # none that ends in 0 itself


def cases(number: int) -> str:
    """a, A, b, B: alike but for their case."""
    name = letters(number // 2)
    return name.upper() if number % 2 else name


def appended(number: int) -> str:
    """a, a-0, and so on: alike up to a separator."""
    return letters(number // len(APPENDED)) + APPENDED[number % len(APPENDED)]


NAMINGS: tuple[Naming, ...] = (letters, numbers, cases, appended)


def resembling(name: str) -> tuple[str, ...]:
    """Other ids that resemble one."""
    alike = (name[:-1], name.swapcase(), f"{name}0", f" {name}")
    return tuple(other for other in alike if other and other != name)
