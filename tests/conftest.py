"""How Hypothesis searches in these tests: profiles dev, ci and nightly.

* dev: at the desk; remembers failures between runs.
* ci: the same programs every time, no memory, and what to paste to repeat a failure. Chosen where
  CI is set.
* nightly: as long as the night allows; other programs every time.

HYPOTHESIS_PROFILE names one, and so does pytest's --hypothesis-profile.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A run of a state machine is long by design; how long it takes is none of Hypothesis's business.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=20_000)

settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)
