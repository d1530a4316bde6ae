"""What a script's process computes with, told by the backend that the script compiles with."""

from __future__ import annotations

import sys
from typing import Any


def compiled_runs(live: Any) -> dict[str, Any]:
    """Runs of the script's own compiled code in one whole step; whether a change is tried on copies, which are not."""
    runs = sys.modules["__main__"].RUNS  # type: ignore[attr-defined]
    before = len(runs)
    live.training.whole_step(live.training.next())
    return {"runs": len(runs) - before, "tried": live.ratio_with(lambda model: model)}
