"""How Hypothesis searches for the driver: the same programs every time, and no shrinking."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def register() -> None:
    """Has to be done before tests are collected: `tests/conftest.py` loads what is named."""
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
