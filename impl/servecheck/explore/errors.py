"""What can be wrong about a search before it begins."""

from __future__ import annotations


class ScopeError(Exception):
    """A scope cannot be searched: what is wrong, and what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
