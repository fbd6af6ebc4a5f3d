"""A fall of a property in the search, with all that it takes to repeat it.

Theory of operation. `PropertyFell` is the exception that carries a fall: what fell, the world, the
program (told by `servecheck.tell`). Its text is the whole report, so that whoever catches it
(pytest, Hypothesis, a shell) shows enough to understand and to repeat the fall.
"""

from __future__ import annotations

from functools import cache

from servecheck.tell import tell_config, tell_policy, tell_program
from servespec.actions import Action
from servespec.config import Config
from servespec.policy import Policy


class PropertyFell(AssertionError):
    """A property fell where the registry does not know that it falls. Make it with `fell`."""

    def __init__(
        self,
        property_id: str,
        statement: str,
        what: str,
        config: Config,
        policy: Policy,
        actions: tuple[Action, ...],
    ) -> None:
        self.property_id = property_id
        self.statement = statement
        self.what = what
        self.config = config
        self.policy = policy
        self.actions = actions
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """The whole report."""
        return (
            f"{self.property_id} falls: {self.what}",
            f"property  {self.statement}",
            f"config    {tell_config(self.config)}",
            f"policy    {tell_policy(self.policy)}",
            *tell_program(self.actions),
        )


@cache
def fell(property_id: str) -> type[PropertyFell]:
    """The class of the falls of one property. Hypothesis tells failures apart by their class, so
    what began as a fall of one property is not shrunk to one of another."""
    name = f"PropertyFell[{property_id}]"
    return type(name, (PropertyFell,), {"__module__": PropertyFell.__module__})
