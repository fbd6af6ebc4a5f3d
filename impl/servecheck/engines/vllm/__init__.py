"""vLLM 0.33.0 itself beside the specification: its `BlockPool` (L1), its `Scheduler` (L3).

    adapters.py   the two engines: `VllmPool`, `VllmLoop`
    theirs.py     what is used of vLLM, written down as protocols, and the import of it
    walks.py      walks at random, vLLM beside the specification

It needs an environment that has vLLM; `make engines` makes one. Nothing of vLLM is imported before
an engine is made.
"""

from servecheck.engines.vllm.adapters import VllmLoop, VllmPool
from servecheck.engines.vllm.theirs import VERSION, missing

__all__ = ["VERSION", "VllmLoop", "VllmPool", "missing"]
