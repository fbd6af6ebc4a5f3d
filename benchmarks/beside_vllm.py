"""The yardstick beside vLLM, in one process, turn by turn: `make bench` runs it where vLLM is.

Both sides serve the same stream with the same sizes, and must keep the same books. Seconds are CPU
seconds of this process; the ratio of each round is printed, and the median of the rounds.
"""

from __future__ import annotations

import statistics
import sys
from time import process_time

from servecheck.engines.vllm.yardstick import vllm_keep_blocks, vllm_serve

from benchmarks.drivers import Books, keep_blocks, serve
from servecheck.workload.zipf import stream

ROUNDS = 3


def main() -> int:
    requests = stream()
    sides = {
        "block bookkeeping": (keep_blocks, vllm_keep_blocks),
        "whole engine": (serve, vllm_serve),
    }
    for name, (mine, theirs) in sides.items():
        ratios = []
        for _ in range(ROUNDS):
            start = process_time()
            ours: Books = mine(requests)
            middle = process_time()
            other = theirs(requests)
            end = process_time()
            if other != (ours.requests, ours.hit_rate, ours.evictions):
                print(f"{name}: the books differ: {ours} and {other}", file=sys.stderr)
                return 1
            fast, slow = middle - start, end - middle
            ratios.append(slow / fast)
            print(
                f"{name}: servecheck {len(requests) / fast:,.0f} requests/s, "
                f"vLLM {len(requests) / slow:,.0f}, {slow / fast:.1f} times as fast"
            )
        print(f"{name}: median {statistics.median(ratios):.1f} times as fast as vLLM")
    return 0


if __name__ == "__main__":
    sys.exit(main())
