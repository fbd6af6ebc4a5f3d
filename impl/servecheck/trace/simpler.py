"""Smaller and simpler runs: what counts as smaller, and what may be tried to get there.

Actions count most, so a run is shortened before its payloads are made simpler. Then requests are
to come early, prompts and outputs to be short, their tokens to be few and near 0, and names to be
r0, r1, … Whether a candidate is legal, and still fails, is asked elsewhere (`shrink`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from servespec.actions import Abort, Action, Complete, Output, ResetCache, Submit
from servespec.chain import PUBLIC, Tokens

Actions = tuple[Action, ...]
Size = tuple[int, int, int, int, int]


def size_of(actions: Sequence[Action]) -> Size:
    """Actions; how late requests come; tokens; how large and how special values are; how odd the
    names."""
    late = tokens = values = names = submits = 0
    for at, action in enumerate(actions):
        match action:
            case Submit(id, prompt, max_tokens, namespace, priority, stop, with_last):
                tokens += len(prompt) + max_tokens + len(stop)
                values += sum(map(abs, (*prompt, *stop, priority))) + with_last
                values += sum(part is not None for part in (namespace.adapter, namespace.salt))
                names += id != f"r{submits}"
                late += at
                submits += 1
            case Complete(outputs):
                tokens += sum(len(o.tokens) + len(o.drafts) for o in outputs)
                values += sum(abs(t) for o in outputs for t in (*o.tokens, *o.drafts))
            case ResetCache(preempt_running):
                values += preempt_running
    return len(actions), late, tokens, values, names


# --- simpler payloads ----------------------------------------------------------------------


def simpler_actions(action: Action) -> Iterator[Action]:
    """Actions of the same kind that say less, the boldest first."""
    match action:
        case Submit():
            yield from simpler_submits(action)
        case Complete(outputs):
            for at, output in enumerate(outputs):
                for simpler in simpler_outputs(output):
                    yield Complete((*outputs[:at], simpler, *outputs[at + 1 :]))
        case ResetCache(True):
            yield ResetCache(False)


def simpler_submits(submit: Submit) -> Iterator[Submit]:
    if submit.namespace != PUBLIC:
        yield evolve(submit, namespace=PUBLIC)
    if submit.stop:
        yield evolve(submit, stop=())
    if submit.with_last:
        yield evolve(submit, with_last=False)
    for priority in smaller(submit.priority, 0):
        yield evolve(submit, priority=priority)
    for max_tokens in smaller(submit.max_tokens, 1):
        yield evolve(submit, max_tokens=max_tokens)
    for prompt in filter(None, simpler_tokens(submit.prompt)):
        yield evolve(submit, prompt=prompt)
        # A request that is given less to read and less to write may end in the same way.
        for max_tokens in smaller(submit.max_tokens, 1):
            yield evolve(submit, prompt=prompt, max_tokens=max_tokens)


def simpler_outputs(output: Output) -> Iterator[Output]:
    for tokens in simpler_tokens(output.tokens):
        yield evolve(output, tokens=tokens)
    for drafts in simpler_tokens(output.drafts):
        yield evolve(output, drafts=drafts)


def smaller(value: float, least: int) -> tuple[int, ...]:
    """Numbers nearer to the least, beginning with it; of a fraction the least alone."""
    if value == least:
        return ()
    if not isinstance(value, int):
        return (least,)
    near = value - 1 if value > least else value + 1
    return tuple(dict.fromkeys((least, near + (least - near) // 2, near)))


def simpler_tokens(tokens: Tokens) -> Iterator[Tokens]:
    """Fewer of them, or more of them 0."""
    count = len(tokens)
    while count:
        for start in range(0, len(tokens), count):
            yield tokens[:start] + tokens[start + count :]
        count //= 2
    if any(tokens):
        yield (0,) * len(tokens)
        for at, token in enumerate(tokens):
            if token:
                yield (*tokens[:at], 0, *tokens[at + 1 :])


def each_submit(change: Callable[[Submit], Submit]) -> Callable[[Actions], Actions]:
    """The same change to every request."""
    return lambda actions: tuple(change(a) if isinstance(a, Submit) else a for a in actions)


def renumbered(actions: Actions) -> Actions:
    """Tokens by the order in which they first occur."""
    numbers: dict[int, int] = {}

    def new(tokens: Tokens) -> Tokens:
        return tuple(numbers.setdefault(token, len(numbers)) for token in tokens)

    found = list[Action]()
    for action in actions:
        match action:
            case Submit():
                action = evolve(action, prompt=new(action.prompt), stop=new(action.stop))
            case Complete(outputs):
                said = (Output(o.id, new(o.tokens), new(o.drafts)) for o in outputs)
                action = Complete(tuple(said))
        found.append(action)
    return tuple(found)


def renamed(actions: Actions) -> Actions:
    """Requests by the order in which they come: r0, r1, …"""
    names: dict[str, str] = {}
    came = 0
    found = list[Action]()
    for action in actions:
        match action:
            case Submit():
                names[action.id] = f"r{came}"
                came += 1
                action = evolve(action, id=names[action.id])
            case Complete(outputs):
                action = Complete(tuple(evolve(o, id=names.get(o.id, o.id)) for o in outputs))
            case Abort(id):
                action = Abort(names.get(id, id))
        found.append(action)
    return tuple(found)


TOGETHER: tuple[Callable[[Actions], Actions], ...] = (
    renamed,
    renumbered,
    each_submit(lambda submit: evolve(submit, namespace=PUBLIC, stop=())),
    each_submit(lambda submit: evolve(submit, priority=0)),
    each_submit(lambda submit: evolve(submit, prompt=submit.prompt[1:] or submit.prompt)),
    each_submit(lambda submit: evolve(submit, prompt=submit.prompt[:-1] or submit.prompt)),
    each_submit(lambda submit: evolve(submit, max_tokens=max(submit.max_tokens - 1, 1))),
)
"""Changes that help only if all requests undergo them."""
