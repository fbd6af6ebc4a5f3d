"""Streams of requests with their moments of arrival: drawn from a seed, or read from a file.

Theory of operation. A stream is `servespec.theory.stream.Stream`. A file has the lines of a
recording's workload, one JSON object a request: `id`, `arrival_step`, `prompt` (token ids),
`max_tokens`, and if they are not the default `priority`, `cache_salt`, `stop_token_ids`; so the
workloads of `traces/vllm-0.33.0` are streams, those without aborts and resets. A drawn stream has
the lengths of the article's, and prompts that begin with one of a few shared prefixes
(`servecheck.workload.zipf`), so that there is something to share.
"""

from __future__ import annotations

import random
from pathlib import Path

from attrs import frozen

from servecheck.recording import Arrival as RecordedArrival
from servecheck.recording import RecordingError, read_workload
from servecheck.workload.zipf import Shape
from servecheck.workload.zipf import stream as prompts
from servespec.actions import Submit
from servespec.chain import Namespace
from servespec.errors import SpecError
from servespec.theory.stream import Arrival, Stream


@frozen
class Drawing:
    """How a stream is drawn. Pairs are least and most, both included."""

    requests: int = 40
    gap: tuple[int, int] = (0, 6)
    """Steps from one arrival to the next."""
    prompt: tuple[int, int] = (16, 128)
    prefix: tuple[int, int] = (8, 64)
    """Tokens of a shared prefix."""
    families: int = 4
    """Shared prefixes."""
    output: tuple[int, int] = (8, 64)

    def __attrs_post_init__(self) -> None:
        least = {"requests": 1, "gap": 0, "prompt": 1, "prefix": 1, "families": 1, "output": 1}
        for name, smallest in least.items():
            value: int | tuple[int, int] = getattr(self, name)
            low, high = value if isinstance(value, tuple) else (value, value)
            if not smallest <= low <= high:
                raise SpecError(
                    name,
                    f"{low} to {high} is no range from {smallest} on",
                    "give the least first, then the most",
                )


def drawn(how: Drawing, seed: int) -> Stream:
    """The stream of this drawing and seed."""
    chance = random.Random(seed)
    shape = Shape(
        requests=how.requests,
        families=how.families,
        prompt=how.prompt,
        prefix=how.prefix,
        output=1,
    )
    step, arrivals = 0, []
    for served in prompts(shape, seed):
        step += chance.randint(*how.gap)
        submit = Submit(served.id, served.prompt, chance.randint(*how.output))
        arrivals.append(Arrival(step, submit))
    return Stream(tuple(arrivals))


def read_stream(path: Path) -> Stream:
    """The requests of a workload file, in the order of the file.

    Raises:
        RecordingError: it is not of the format, a line is no request, or no request that can be;
            with file and line.
    """
    if not path.exists():
        advice = "name another, or none, and a stream is drawn"
        raise RecordingError(path, None, None, "there is no such file", advice)
    arrivals: list[Arrival] = []
    for number, line in enumerate(read_workload(path), 1):
        if not isinstance(line, RecordedArrival):
            kind = type(line).__name__.removesuffix("Line").lower()
            advice = "a stream has requests only; leave this line out"
            raise RecordingError(path, number, None, f"the line is no request but a {kind}", advice)
        try:
            submit = Submit(
                line.id,
                line.prompt,
                line.max_tokens,
                Namespace(salt=line.cache_salt),
                line.priority,
                line.stop_token_ids,
            )
            arrivals.append(Arrival(line.arrival_step, submit))
            # All of the stream is asked for again below; this names the line.
            Stream(tuple(arrivals[-2:]))
        except SpecError as error:
            raise RecordingError(
                path, number, None, f"{error.where}: {error.what}", error.remedy
            ) from None
    if not arrivals:
        raise RecordingError(path, None, None, "it has no request", "give at least one line")
    try:
        return Stream(tuple(arrivals))
    except SpecError as error:
        raise RecordingError(
            path, None, None, f"{error.where}: {error.what}", error.remedy
        ) from None
