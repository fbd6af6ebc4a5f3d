"""Ways to the same failure with fewer actions, where leaving some out is not enough.

Theory of operation. A pass and its outcome cannot simply go: who was computed in it would be
behind, and all that follows would change. So each way here says what else changes with it:

    what a pass brought  ──▶  part of the prompt: the request comes with the text that it has there
    two requests         ──▶  one, which does what either did
    a late request       ──▶  comes before a pass, and that pass goes

Each is a candidate only. Whether it is legal is seen to by mending, and whether it still fails, and
is smaller, is asked, elsewhere (`shrink`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from attrs import evolve

from servecheck.trace.simpler import Actions
from servespec.actions import Action, Complete, Discard, Output, Schedule, Submit
from servespec.chain import Token

FEW = 24
"""Actions of a run in which all pairs of passes, or of requests, are tried."""

Pass = tuple[int, int]
"""Where a plan is made, and where its outcome comes."""


def passes(actions: Sequence[Action]) -> tuple[Pass, ...]:
    """The passes that ran to their end, in order."""
    found, begun = list[Pass](), list[int]()
    for at, action in enumerate(actions):
        match action:
            case Schedule():
                begun.append(at)
            case Discard() if begun:
                begun.pop()
            case Complete() if begun:
                found.append((begun.pop(0), at))
    return tuple(found)


def runs_of(items: Sequence[Pass]) -> Iterator[tuple[Pass, ...]]:
    """Items in a row, the longest first; while there are many, each half as long as the last."""
    size = len(items)
    while size:
        step = 1 if len(items) <= FEW else max(size // 2, 1)
        for start in range(0, len(items) - size + 1, step):
            yield tuple(items[start : start + size])
        size = size - 1 if len(items) <= FEW // 2 else size // 2


def fewer_actions(actions: Actions) -> Iterator[Actions]:
    """Candidates with fewer actions, the boldest first; then the same with texts that share
    nothing: prompts that have grown may hit each other's blocks where outputs did not."""
    yield from _fewer(actions)
    yield from map(apart, _fewer(actions))


def _fewer(actions: Actions) -> Iterator[Actions]:
    for some in runs_of(passes(actions)):
        yield without(actions, some)
        yield brought_along(actions, some)
    if len(actions) <= FEW:
        yield from merged(actions)
        yield from sooner(actions)


def apart(actions: Actions) -> Actions:
    """The n-th request reads and writes nothing but n."""
    mine: dict[str, int] = {}
    found = list[Action]()
    for action in actions:
        match action:
            case Submit(id=id, prompt=prompt):
                mine[id] = sum(isinstance(a, Submit) for a in found)
                action = evolve(action, prompt=(mine[id],) * len(prompt))
            case Complete(outputs):
                action = Complete(tuple(_constant(o, mine.get(o.id, 0)) for o in outputs))
        found.append(action)
    return tuple(found)


def _constant(output: Output, token: Token) -> Output:
    return Output(output.id, (token,) * len(output.tokens), (token,) * len(output.drafts))


def without(actions: Actions, dropped: Collection[Pass]) -> Actions:
    """These passes never were."""
    gone = {at for pair in dropped for at in pair}
    return tuple(action for at, action in enumerate(actions) if at not in gone)


def brought_along(actions: Actions, dropped: Collection[Pass]) -> Actions:
    """These passes never were, and everybody comes with as many more tokens as they brought. The
    text of each request stays what it was."""
    owners, texts, earlier = _texts(actions, {complete for _, complete in dropped})
    gone = {at for pair in dropped for at in pair}
    told: Counter[int] = Counter(earlier)
    found = list[Action]()
    for at, action in enumerate(actions):
        match action:
            case Submit(prompt=prompt, max_tokens=most) if earlier[at]:
                if most > earlier[at]:
                    more = tuple(texts[at][: earlier[at]])
                    most -= earlier[at]
                    found.append(evolve(action, prompt=prompt + more, max_tokens=most))
            case Complete(outputs) if at not in gone:
                said = list[Output]()
                for output in outputs:
                    owner = owners.get((at, output.id))
                    if owner is not None:
                        start = told[owner]
                        told[owner] += len(output.tokens)
                        output = evolve(output, tokens=tuple(texts[owner][start : told[owner]]))
                    said.append(output)
                found.append(Complete(tuple(said)))
            case _ if at not in gone:
                found.append(action)
    return tuple(found)


def _texts(
    actions: Actions, dropped: Collection[int]
) -> tuple[dict[tuple[int, str], int], dict[int, list[Token]], Counter[int]]:
    """Whose each output is, by where its request came; what each was told; how many tokens of that
    in the outcomes that are dropped."""
    here: dict[str, int] = {}
    owners: dict[tuple[int, str], int] = {}
    texts: defaultdict[int, list[Token]] = defaultdict(list)
    earlier: Counter[int] = Counter()
    for at, action in enumerate(actions):
        match action:
            case Submit(id):
                here[id] = at
            case Complete(outputs):
                for output in outputs:
                    owner = here.get(output.id)
                    if owner is None:
                        continue
                    owners[at, output.id] = owner
                    texts[owner] += output.tokens
                    if at in dropped:
                        earlier[owner] += len(output.tokens)
    return owners, texts, earlier


def merged(actions: Actions) -> Iterator[Actions]:
    """Two requests become one: the first as it is, or with the text of the second; with what
    either was told."""
    submits = [(at, a) for at, a in enumerate(actions) if isinstance(a, Submit)]
    for (i, one), (j, other) in combinations(submits, 2):
        for kept in (one, evolve(other, id=one.id, with_last=one.with_last)):
            changed = (*actions[:i], kept, *actions[i + 1 : j], *actions[j + 1 :])
            yield tuple(_renamed(action, other.id, one.id) for action in changed)


def _renamed(action: Action, old: str, new: str) -> Action:
    if isinstance(action, Complete) and not any(o.id == new for o in action.outputs):
        said = (evolve(o, id=new) if o.id == old else o for o in action.outputs)
        return Complete(tuple(said))
    return action


def sooner(actions: Actions) -> Iterator[Actions]:
    """A request comes before a pass that was before it, and that pass goes; all requests come
    first."""
    yield tuple(sorted(actions, key=lambda action: not isinstance(action, Submit)))
    for at, action in enumerate(actions):
        if not isinstance(action, Submit):
            continue
        for some in passes(actions):
            if some[0] < at:
                first = min(some[0], at)
                moved = (*actions[:first], action, *actions[first:at], *actions[at + 1 :])
                shifted = (some[0] + 1, some[1] + (some[1] < at))
                yield without(moved, (shifted,))
                yield brought_along(moved, (shifted,))
