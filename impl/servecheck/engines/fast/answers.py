"""What the model may answer to a plan of the fast engine: checked before anything moves."""

from __future__ import annotations

from servecheck.engines.fast.plan import FastPlan, FastPlanned
from servespec.actions import Output
from servespec.chain import Tokens
from servespec.errors import require


def by_request(plan: FastPlan, outputs: tuple[Output, ...], gamma: int) -> dict[str, Output]:
    """Outputs by the id of their request.

    Raises:
        ActionDisabled: an id comes twice or is not in the plan, or drafts are more than `gamma`.
    """
    told = {output.id: output for output in outputs}
    require(len(told) == len(outputs), "Complete", "an id comes twice", "one output a request")
    ids = {request.id for request in plan.requests}
    for output in outputs:
        require(
            output.id in ids,
            "Complete",
            f"request {output.id!r} is not in the plan",
            "bring outputs of the plan's requests only",
        )
        require(
            len(output.drafts) <= gamma,
            "Complete",
            f"{len(output.drafts)} drafts for request {output.id!r}",
            f"propose at most {gamma}",
        )
    return told


def check_tokens(plan: FastPlan, entry: FastPlanned, tokens: Tokens) -> None:
    """Outputs of those who have left are ignored, whatever they are.

    Raises:
        ActionDisabled: the tokens are none that the entry can have.
    """
    if not plan.live(entry.request):
        return
    require(
        bool(tokens) == entry.yields,
        "Complete",
        f"request {entry.request.id!r} has {len(tokens)} tokens",
        "a prefill chunk samples none, any other pass at least one",
    )
    accepted = tokens[:-1]
    if accepted:
        # Padding is no token id, so nobody can accept it.
        require(
            accepted == entry.drafts[: len(accepted)],
            "Complete",
            f"request {entry.request.id!r} accepts {accepted} of drafts {entry.drafts}",
            "accepted drafts are the first ones, and one token follows",
        )
