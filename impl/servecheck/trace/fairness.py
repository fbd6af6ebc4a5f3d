"""What LIV-1 says of a request, and of what happens while it waits.

Theory of operation. A request is *served* if it has the machine to itself, or nothing is said of it
(`servespec.machine.fits_alone`). While it waits some things may happen for ever (`goes_on`), and
all others end some time: a run is fair in which they do. The lasso of a finite run (`trace.lasso`)
and the graph of states (`explore.liveness`) ask the same questions.
"""

from __future__ import annotations

from servespec.actions import Action, Complete, Schedule, Submit
from servespec.config import usable_blocks
from servespec.machine import Machine, fits_alone
from servespec.policy import Order, Policy, Victim
from servespec.request import Request, peak


def served_after(policy: Policy, submit: Submit, request: Request) -> bool:
    """An arrival that does not go before this request: LIV-1 says nothing where such as do go
    before it never end. Who arrives together with it may go before it."""
    if policy.order is Order.FCFS and policy.victim is not Victim.WORST_PRIORITY:
        return True
    if submit.priority == request.priority:
        return not submit.with_last
    return submit.priority > request.priority


def goes_on(policy: Policy, action: Action, waits: Request) -> bool:
    """This may happen for ever while a request waits: LIV-1's fairness."""
    if isinstance(action, Submit):
        return served_after(policy, action, waits)
    return isinstance(action, Schedule | Complete)


# --- who can never be served ---------------------------------------------------------------


def too_large(machine: Machine, r: Request) -> bool:
    """It needs more blocks than there are."""
    most = peak(machine.config, len(r.prompt), r.max_tokens)
    return machine.config.blocks_for(most) > usable_blocks(machine.config, machine.policy)


def fills_the_model(machine: Machine, r: Request) -> bool:
    """Its prompt leaves no room for a token."""
    return len(r.prompt) >= machine.config.max_model_len


def too_long(machine: Machine, r: Request) -> bool:
    """It fits into the pool and the model, and cannot be served: no pass holds its text."""
    there = too_large(machine, r) or fills_the_model(machine, r)
    return not there and not fits_alone(machine, r)
