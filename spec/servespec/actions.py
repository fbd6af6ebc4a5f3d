"""What can happen to a serving loop: six actions.

They are data. What each one does, and when it is enabled, is said in `servespec.machine`.
"""

from __future__ import annotations

from attrs import frozen

from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.errors import RequestError


@frozen
class Submit:
    """Action: a request arrives; `with_last` says that it arrives at the same moment as the
    youngest live one, otherwise it is younger."""

    id: str
    prompt: Tokens
    max_tokens: int
    namespace: Namespace = PUBLIC
    priority: int = 0
    stop: Tokens = ()
    with_last: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.prompt:
            raise RequestError(
                f"request {self.id!r}", "the prompt is empty", "give at least one token"
            )
        if self.max_tokens < 1:
            raise RequestError(
                f"request {self.id!r}",
                f"max_tokens is {self.max_tokens}",
                "allow at least one token of output",
            )


@frozen
class Schedule:
    """Make a plan and put it in flight."""


@frozen
class Output:
    """What a step brings for one request: accepted drafts and one token more, and the drafts for
    its next pass. A prefill chunk brings no tokens."""

    id: str
    tokens: Tokens = ()
    drafts: Tokens = ()


@frozen
class Complete:
    """The oldest plan in flight has run."""

    outputs: tuple[Output, ...] = ()


@frozen
class Discard:
    """The newest plan in flight never ran."""


@frozen
class Abort:
    id: str


@frozen
class ResetCache:
    """Forget all that is cached; `preempt_running` first sends back what runs."""

    preempt_running: bool = False


Action = Submit | Schedule | Complete | Discard | Abort | ResetCache
