"""Programs and worlds in words.

Theory of operation. A program is the list of actions that a machine was moved by. It is told one
numbered line an action, a policy by the profile next to it and what differs, sizes by those that
are not at their default. Failure reports, fuzzing and the command line all tell them so.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import fields

from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    Output,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.config import Config
from servespec.policy import NAMED as NAMED
from servespec.policy import Policy

# --- worlds --------------------------------------------------------------------------------


def differences(policy: Policy, base: Policy) -> tuple[str, ...]:
    """The axes on which a policy differs from another, with its own values."""
    found = []
    for axis in fields(Policy):
        mine: object = getattr(policy, axis.name)
        if mine != getattr(base, axis.name):
            found.append(f"{axis.name}={getattr(mine, 'name', mine)}")
    return tuple(found)


def nearest(policy: Policy) -> str:
    """The profile from which a policy differs in the fewest axes."""
    return min(NAMED, key=lambda name: len(differences(policy, NAMED[name])))


def tell_policy(policy: Policy) -> str:
    """The profile that is next to the policy, and what differs."""
    name = nearest(policy)
    rest = ", ".join(differences(policy, NAMED[name]))
    return f"{name} with {rest}" if rest else name


def tell_config(config: Config) -> str:
    """The sizes, but for those at their default."""
    shown = []
    for size in fields(Config):
        value: object = getattr(config, size.name)
        if value != size.default:
            shown.append(f"{size.name}={value}")
    return ", ".join(shown)


# --- programs ------------------------------------------------------------------------------


def tell_action(action: Action) -> str:
    """One line."""
    match action:
        case Submit():
            return _tell_submit(action)
        case Schedule():
            return "schedule"
        case Complete(outputs):
            return f"complete: {'; '.join(map(_tell_output, outputs))}" if outputs else "complete"
        case Discard():
            return "discard"
        case Abort(id):
            return f"abort {id}"
        case ResetCache(preempt_running):
            return "reset, preempting what runs" if preempt_running else "reset"


def _tell_submit(submit: Submit) -> str:
    parts = [f"submit {submit.id}: prompt {_tokens(submit.prompt)}", f"≤ {submit.max_tokens} more"]
    if submit.stop:
        parts.append(f"stop on {_tokens(submit.stop)}")
    if submit.priority:
        parts.append(f"priority {submit.priority}")
    if submit.namespace != PUBLIC:
        parts.append(f"in {_namespace(submit.namespace)}")
    if submit.with_last:
        parts.append("with the last")
    return ", ".join(parts)


def _tell_output(output: Output) -> str:
    drafts = f", drafts {_tokens(output.drafts)}" if output.drafts else ""
    return f"{output.id} → {_tokens(output.tokens)}{drafts}"


def _tokens(tokens: Tokens) -> str:
    return " ".join(map(str, tokens))


def _namespace(namespace: Namespace) -> str:
    return f"({namespace.adapter or '-'}, {namespace.salt or '-'})"


def tell_program(actions: Sequence[Action]) -> tuple[str, ...]:
    """Numbered lines."""
    width = len(str(len(actions)))
    return tuple(f"{n:>{width}}  {tell_action(action)}" for n, action in enumerate(actions, 1))
