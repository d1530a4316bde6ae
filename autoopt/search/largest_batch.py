"""The final plan on the largest batch there is: what a real run meets sooner or later must fit too."""

from __future__ import annotations

from autoopt.errors import TrialFailed
from autoopt.records import Plan, Record
from autoopt.search.accept.memory_margin import lost_margin, near_limit
from autoopt.search.compare.comparison import Comparison
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState

SECONDS = 600.0


class Worst(Record):
    """Memory of steps on the largest batch, in bytes."""

    peak_memory_bytes: int | None = None
    allocated_memory_bytes: int | None = None
    allocation_retries: int = 0


def memory_trouble(context: RunContext, state: SearchState, comparison: Comparison) -> tuple[str, bool]:
    """Why the incumbent leaves too little memory free, and whether it failed; empty where it leaves enough.

    Where shapes vary it is trained on the largest of many batches, and so is the baseline where that is too much.
    """
    limit = context.gate.memory_limit_bytes
    reason = lost_margin(comparison.incumbent, comparison.candidate, limit)
    if reason or limit is None or state.facts.static_shapes:
        return reason and f"memory: {reason}", False
    try:
        after = _worst(context, state.incumbent)
    except TrialFailed as failure:
        return (f"on the largest batch: {failure.reason}", True) if _fits(context, state.baseline) else ("", False)
    reason = near_limit(after.peak_memory_bytes, limit, after.allocation_retries, after.allocated_memory_bytes)
    if not reason:
        return "", False
    try:
        before = _worst(context, state.baseline)
    except TrialFailed:
        return "", False  # the baseline does not fit there at all
    as_full = (before.peak_memory_bytes or 0) >= (after.peak_memory_bytes or 0)
    as_pressed = before.allocation_retries >= after.allocation_retries
    return ("", False) if as_full and as_pressed else (f"memory: on the largest batch {reason}", False)


def _fits(context: RunContext, plan: Plan) -> bool:
    try:
        _worst(context, plan)
    except TrialFailed:
        return False
    return True


def _worst(context: RunContext, plan: Plan) -> Worst:
    def measure() -> Worst:
        task = "autoopt.benchmark.tasks:largest_batch"
        found = context.runner.ask(plan, task, timeout=SECONDS, label="largest")
        return Worst(
            peak_memory_bytes=found.get("peak_memory_bytes"),
            allocated_memory_bytes=found.get("allocated_memory_bytes"),
            allocation_retries=found.get("allocation_retries", 0),
        )

    return context.run.step("largest", {"plan": plan.model_dump(mode="json")}, measure, Worst)
