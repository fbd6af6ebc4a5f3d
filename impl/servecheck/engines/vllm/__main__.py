"""`python -m servecheck.engines.vllm`: walks at random, vLLM beside the specification."""

from __future__ import annotations

import sys

from servecheck.engines.vllm.walks import main

sys.exit(main())
