"""What can go wrong, as three classes. None of them leaves anything half done: states are values.

* `ConfigError`: sizes or choices that contradict themselves or each other; nothing is built.
* `RequestError`: a request that no engine could serve (an empty prompt, no output allowed).
* `ActionDisabled`: misuse of a machine. The state it was asked to move is still the state.

A legal *no* of an engine is no error but a `Refused` event.
"""

from __future__ import annotations


class SpecError(ValueError):
    """Base of all errors of the specification: what, where, and what to do about it."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where}: {what}; {remedy}")
        self.where = where
        self.what = what
        self.remedy = remedy


class ConfigError(SpecError):
    """A size or a choice that contradicts itself or another one; `where` names the field."""


class RequestError(SpecError):
    """A request that cannot exist; `where` names it."""


class ActionDisabled(SpecError):
    """An action that this state does not offer; `where` names the action."""


def require(condition: bool, where: str, what: str, remedy: str) -> None:
    """A guard: nothing happens unless `condition` holds."""
    if not condition:
        raise ActionDisabled(where, what, remedy)
