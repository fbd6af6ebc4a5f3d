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
        _demand(self, isinstance(self.id, str), "its id is no text", "name it by a text")
        _tokens(self, "prompt", self.prompt)
        _tokens(self, "stop", self.stop)
        _demand(self, bool(self.prompt), "the prompt is empty", "give at least one token")
        whole = isinstance(self.max_tokens, int) and not isinstance(self.max_tokens, bool)
        _demand(
            self,
            whole and self.max_tokens >= 1,
            f"max_tokens is {self.max_tokens}",
            "allow at least one token of output",
        )
        _demand(
            self,
            isinstance(self.priority, int) and isinstance(self.namespace, Namespace),
            f"priority is {self.priority!r}, namespace {self.namespace!r}",
            "give a whole number and a Namespace",
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

    def __attrs_post_init__(self) -> None:
        _tokens(self, "tokens", self.tokens)
        _tokens(self, "drafts", self.drafts)


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


def _demand(about: Submit | Output, condition: bool, problem: str, remedy: str) -> None:
    if not condition:
        raise RequestError(f"request {about.id!r}", problem, remedy)


def _tokens(about: Submit | Output, name: str, tokens: Tokens) -> None:
    """Token ids are whole numbers from 0; -1 is what a padded draft is."""
    fine = isinstance(tokens, tuple) and list(map(type, tokens)).count(int) == len(tokens)
    fine = fine and min(tokens, default=0) >= 0
    _demand(about, fine, f"its {name} are no token ids", "give a tuple of whole numbers from 0")
