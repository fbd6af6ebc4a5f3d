"""Run twice: an engine that disagrees with itself has not been shown to disagree with anybody.

Theory of operation. A divergence is repeated on two new engines of the same subject, one after the
other. Up to a divergence all that an engine showed was what the specification says, and at it the
differences hold all that it showed otherwise; so two runs showed the same if they part at the same
action by the same differences. If they do not, or part otherwise than the run that found it, the
engine is *nondeterministic*: that is the verdict, and no divergence is reported.
"""

from __future__ import annotations

from attrs import frozen

from servecheck.lockstep.follow import Divergence
from servecheck.lockstep.subject import Parted, Subject, parted
from servespec.actions import Action
from servespec.machine import Machine


@frozen
class Twice:
    """What two new engines did on one program."""

    first: Parted | None
    second: Parted | None

    @property
    def repeated(self) -> bool:
        """They did the same."""
        return divergence_of(self.first) == divergence_of(self.second)

    def confirms(self, divergence: Divergence) -> bool:
        """Both part from the specification as the run did that found the divergence."""
        return self.repeated and divergence_of(self.first) == divergence

    @property
    def told(self) -> str:
        """What each of them did, in one sentence."""
        return f"the first run {_told(self.first)}; the second {_told(self.second)}"


def divergence_of(found: Parted | None) -> Divergence | None:
    return None if found is None else found.divergence


def twice(subject: Subject, machine: Machine, actions: tuple[Action, ...]) -> Twice:
    """Run a program on two new engines.

    Raises:
        ActionDisabled, Unsupported, Lost: as for `parted`.
    """
    return Twice(parted(subject, machine, actions), parted(subject, machine, actions))


def _told(found: Parted | None) -> str:
    if found is None:
        return "agrees with the specification"
    first = found.divergence.differences[0]
    return f"differs after action {found.divergence.number + 1}, {first.field}: {first.observed}"
