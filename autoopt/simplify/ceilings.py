"""The theoretical best of each stage from the machine's measured peaks. Pure."""

from __future__ import annotations

from autoopt.records import Peaks
from autoopt.simplify.pipeline import LINK, Pipeline
from autoopt.simplify.roofline import bandwidth, fused_ceiling, matmul_peak
from autoopt.simplify.survey import Survey

PRODUCT = 1024
"""Rows of the square product that tells how near to its peak the machine is just now, on all of its cores."""
USEFUL_CONCURRENCY = 32
_OWN = ("preparation", "storage")
"""Ceilings that follow from the workload's own seconds, and from no peak."""


def stage_ceilings(survey: Survey, peaks: Peaks) -> dict[str, float]:
    """Seconds per optimizer step by stage; a stage whose ceiling is not known is left out.

    Preparation: its CPU seconds over all cores. Storage: waiting over the reads that a storage is commonly
    asked for at once, or its bytes over the measured rate, whichever is more. Collate, pinning, copies and
    the optimizer: bytes over bandwidth. Forward and backward: arithmetic at the best allowed precision.
    Host: nothing, since all of it can be compiled away.
    """
    samples = survey.batch_size * survey.accumulation
    found: dict[str, float] = {"host": 0.0}
    inputs, speed = survey.inputs, bandwidth(peaks, survey.batch_bytes or None)
    batches = survey.batch_bytes * survey.accumulation
    if inputs.sample:
        cpu = inputs.sample.cpu_seconds if inputs.sample.cpu_seconds is not None else inputs.sample.seconds
        found["preparation"] = cpu * samples / survey.cores
        found["storage"] = (inputs.sample.wait_seconds or 0.0) * samples / USEFUL_CONCURRENCY
    if speed:
        found["collate"] = batches / speed / survey.cores
        found["pin"] = batches / speed
        # what is moved lies in at least half as many bytes, of which the caches keep as much as they do of those
        found["optimizer"] = survey.optimizer_bytes / (bandwidth(peaks, survey.optimizer_bytes / 2 or None) or speed)
        found["checkpoint"] = 0.0
    found["copy"] = _copy(survey, peaks)
    found |= _compute(survey, peaks)
    faster = _faster(survey, peaks)
    return {name: seconds * (1.0 if name in _OWN else faster) for name, seconds in found.items()}


def _faster(survey: Survey, peaks: Peaks) -> float:
    """Below 1 where the machine is faster now than it was when its peaks were measured, which then are none."""
    if not survey.pace or not peaks.pace_seconds:
        return 1.0
    return min(1.0, survey.pace / peaks.pace_seconds)


def _copy(survey: Survey, peaks: Peaks) -> float:
    """On the CPU there is nothing to copy."""
    rate = peaks.copy_pinned_to_device_bytes_per_second
    if survey.device == "cpu" or not rate:
        return 0.0
    return survey.batch_bytes * survey.accumulation / rate


def _compute(survey: Survey, peaks: Peaks) -> dict[str, float]:
    """Forward and backward, and evaluation at the forward's rate."""
    both = fused_ceiling(survey.operators, peaks, survey.allowed_precisions)
    if both is None or matmul_peak(peaks, survey.allowed_precisions) is None:
        return {}
    share = survey.operators_forward_share if survey.operators_forward_share is not None else 1 / 3
    found = {
        "forward": both * share * survey.accumulation,
        "backward": both * (1 - share) * survey.accumulation,
    }
    if survey.evaluation_batches and survey.evaluate_every:
        found["evaluate"] = 0.0
    return found


def of_peak(survey: Survey, peaks: Peaks) -> float:
    """Share of its peak at which the machine worked while the compute was measured; 1 where that is not known.

    Of a peak that was reached in the best moment a shared machine gives less in most others, whatever it computes.
    """
    peak, seconds = peaks.matmul_fp32_flops_per_second, survey.product_seconds
    if not peak or not seconds:
        return 1.0
    return min(1.0, 2.0 * PRODUCT**3 / seconds / peak)


def ceiling_step(pipeline: Pipeline, survey: Survey, peaks: Peaks) -> float | None:
    """The best step that the stages' ceilings allow; never above the measured one, which would prove it wrong."""
    ceiling = uncapped_ceiling_step(pipeline, survey, peaks)
    return None if ceiling is None else min(ceiling, pipeline.step_seconds)


def uncapped_ceiling_step(pipeline: Pipeline, survey: Survey, peaks: Peaks, of_peak: float = 1.0) -> float | None:
    """The best step when everything that can overlap does, from the ceilings as they were computed.

    Args:
        of_peak: share of their peak that products reach just now.

    On the CPU, preparation and compute share the cores, so that their best times add up.
    """
    present = {stage.name for stage in pipeline.stages}
    best = {name: value for name, value in stage_ceilings(survey, peaks).items() if name in present}
    if "forward" not in best or "backward" not in best:
        return None
    compute = (best["forward"] + best["backward"]) / of_peak + best.get("optimizer", 0.0)
    preparation = best.get("preparation", 0.0) + best.get("collate", 0.0)
    link = max((best.get(name, 0.0) for name in LINK), default=0.0)
    together = preparation + compute if survey.device == "cpu" else max(preparation, compute)
    return max(together, best.get("storage", 0.0), link)
