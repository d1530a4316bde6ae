"""The least that a trial can be: its process builds nothing, and its one task sleeps. What is left is scheduling."""

from __future__ import annotations

import os
import time
from typing import Any


class Sleeper:
    """Stands for a trial's context (``autoopt.trial.parent.Launcher``'s ``live``)."""

    def __init__(self, spec: Any, registry: Any) -> None:
        self.spec = spec


def sleep(live: Sleeper, seconds: float) -> dict[str, Any]:
    """Sleeps, and tells how long, and which process it was."""
    began = time.perf_counter()
    time.sleep(seconds)
    return {"seconds": time.perf_counter() - began, "pid": os.getpid()}
