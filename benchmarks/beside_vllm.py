"""The yardstick beside vLLM, in one process, turn by turn: `make bench` runs it where vLLM is.

Both sides serve the same stream with the same sizes, tell of every block stored and removed, and
must keep the same books. Seconds are CPU seconds of this process; the ratio of each round is
printed, and the median of the rounds.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from time import process_time
from typing import Protocol, cast

from attrs import define

from benchmarks.drivers import AT_ONCE, SIZES, Arrival, Books, arrivals, keep_blocks, serve
from servecheck.engines.vllm.adapters import Requests, scheduler
from servecheck.engines.vllm.theirs import load
from servecheck.workload.zipf import stream
from servespec.policy import VLLM_0_33

ROUNDS = 5

Drive = Callable[[Sequence[Arrival]], Books]


def removed(events: Iterable[object]) -> int:
    """Blocks that lost their hash."""
    kind = import_module("vllm.distributed.kv_events").BlockRemoved
    return sum(len(e.block_hashes) for e in events if isinstance(e, kind))


class Batch(Protocol):
    """A message of events, as vLLM's scheduler publishes it."""

    events: list[object]


@define
class Tap:
    """Takes the place of vLLM's publisher."""

    told: list[object]

    def publish(self, batch: Batch) -> None:
        self.told += batch.events

    def shutdown(self) -> None: ...


class Growing(Protocol):
    """What a driver does to vLLM's request."""

    num_computed_tokens: int

    def append_output_token_ids(self, token: int, /) -> None: ...


def vllm_keeps_blocks(requests: Sequence[Arrival]) -> Books:
    """vLLM's KVCacheManager, driven as `drivers.keep_blocks` drives ours."""
    vllm, make = load(), Requests.of(load(), SIZES, VLLM_0_33)
    spec = vllm.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=vllm.float16)
    manager = import_module("vllm.v1.core.kv_cache_manager").KVCacheManager(
        vllm.KVCacheConfig(
            num_blocks=SIZES.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[vllm.KVCacheGroupSpec(["layer"], spec)],
        ),
        max_model_len=SIZES.max_model_len,
        scheduler_block_size=16,
        hash_block_size=16,
        enable_caching=True,
        enable_kv_cache_events=True,
        log_stats=True,
    )
    todo, running = list(reversed(requests)), dict[str, tuple[Growing, list[int]]]()
    prompts = hits = evictions = done = 0
    while todo or running:
        while todo and len(running) < AT_ONCE:
            arrival = todo[-1]
            submit = arrival.submit
            request = make.make(submit, submit.id)
            blocks, hit, _ = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, len(submit.prompt) - hit, hit, blocks) is None:
                break
            todo.pop()
            request.num_computed_tokens = len(submit.prompt)
            running[submit.id] = cast(Growing, request), list(reversed(arrival.output))
            prompts += len(submit.prompt)
            hits += hit
        ended = []
        for text_id, (text, rest) in running.items():
            if not rest:
                ended.append(text_id)
                continue
            text.append_output_token_ids(rest.pop())
            if manager.allocate_slots(text, 1) is None:
                ended.append(text_id)
            else:
                text.num_computed_tokens += 1
        for text_id in ended:
            manager.free(running.pop(text_id)[0])
        done += len(ended)
        evictions += removed(manager.take_events())
    return Books(done, round(hits / prompts, 4), evictions)


def vllm_serves(requests: Sequence[Arrival]) -> Books:
    """vLLM's Scheduler, driven as `drivers.serve` drives ours."""
    vllm, make = load(), Requests.of(load(), SIZES, VLLM_0_33)
    engine = scheduler(vllm, SIZES, VLLM_0_33)
    told: list[object] = []
    # The scheduler drains its pool's events itself, and publishes them.
    setattr(engine.kv_cache_manager.block_pool, "enable_kv_cache_events", True)  # noqa: B010
    setattr(engine, "kv_event_publisher", Tap(told))  # noqa: B010
    todo, rest = list(reversed(requests)), dict[str, list[int]]()
    prompts = hits = evictions = 0
    while todo or engine.requests:
        while todo and len(engine.requests) < AT_ONCE:
            arrival = todo.pop()
            submit = arrival.submit
            rest[submit.id] = list(reversed(arrival.output))
            engine.add_request(make.make(submit, submit.id))
            prompts += len(submit.prompt)
        plan = engine.schedule()
        hits += sum(new.num_computed_tokens for new in plan.scheduled_new_reqs)
        ids = list(plan.num_scheduled_tokens)
        found = engine.requests
        sampled = [[] if found[i].is_prefill_chunk else [rest[i].pop()] for i in ids]
        engine.update_from_output(
            plan,
            vllm.ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={i: at for at, i in enumerate(ids)},
                sampled_token_ids=sampled,
            ),
        )
        evictions += removed(told)
        told.clear()
    return Books(len(rest), round(hits / prompts, 4), evictions)


def timed(drive: Drive, requests: Sequence[Arrival]) -> tuple[Books, float]:
    """The books of a drive, and its CPU seconds; the garbage of others is cleared away before."""
    gc.collect()
    start = process_time()
    books = drive(requests)
    return books, process_time() - start


def main() -> int:
    requests = arrivals(stream())
    load()
    gc.collect()
    gc.freeze()  # what vLLM's import has made is nobody's garbage; vLLM's own server does the same
    sides: dict[str, tuple[Drive, Drive]] = {
        "block bookkeeping": (keep_blocks, vllm_keeps_blocks),
        "whole engine": (serve, vllm_serves),
    }
    for name, (mine, theirs) in sides.items():
        ratios = []
        for _ in range(ROUNDS):
            ours, fast = timed(mine, requests)
            other, slow = timed(theirs, requests)
            if other != ours:
                print(f"{name}: the books differ: {ours} and {other}", file=sys.stderr)
                return 1
            ratios.append(slow / fast)
            print(
                f"{name}: servecheck {len(requests) / fast:,.0f} requests/s, "
                f"vLLM {len(requests) / slow:,.0f}, ratio {slow / fast:.1f}"
            )
        print(f"{name}: {statistics.median(ratios):.1f} times as fast as vLLM (median)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
