"""What all tests share: one thread of arithmetic, and property tests that do not depend on the machine's speed."""

from __future__ import annotations

import os

os.environ["AUTOOPT_HISTORY"] = "off"  # what one test finds must not order another's search
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tests of logic must not spin on two cores

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
