"""The A/A control: the baseline against itself in separate processes, and what makes a machine doubtful."""

from __future__ import annotations

from math import exp, expm1, log, sqrt
from typing import Any

import numpy as np

from autoopt.records import Noise, Plan
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import Comparison, Rule, Side
from autoopt.search.compare.contest import compare
from autoopt.search.compare.sequential_test import as_estimate, between_process_of, scatter
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel, known_radius

_DRIFT, _FLOOR, _DISTURBED = 0.10, 0.10, 0.15
"""From where on a machine is doubtful: drift, the gain within noise, the share of pairs that others disturbed."""


def control(
    start: Start, baseline: Plan, rule: Rule, *, pairs: int = 4, most: int | None = None, **options: Any
) -> tuple[Noise, Comparison]:
    """Compares the baseline with itself, ``pairs`` pairs of processes of it, ``earlier`` ones included, decided or not.

    Args:
        most: further pairs, up to so many, while the seconds of the rule last; None: no further ones.

    Returns:
        The noise (None values where not one pair could be measured) and the comparison it came from, whose sides
            are the baseline's own figures and whose failure, if any, is the baseline's.
    """
    fixed = rule.model_copy(update={"max_pairs": most or pairs, "min_pairs": pairs, "until_error": 0.0})
    comparison = compare(start, baseline, baseline, fixed, **options)
    return noise_of(comparison, rule), comparison


def noise_of(comparison: Comparison, rule: Rule) -> Noise:
    """The noise that an A/A comparison shows: the ratio with its interval, the between-process variance, the floor.

    The floor is the smallest gain that a comparison of ``rule.max_pairs`` pairs can tell from none: the half-width of
    its confidence sequence at this variance between processes and these block errors. Where the A/A interval itself
    leaves 1 out, whatever pushed it there could push a candidate: the floor is then at least as large.
    """
    if not comparison.pairs:
        return Noise()
    values, errors = comparison.logs
    before = BetweenProcess()
    between = before.after(values, errors, around=0.0)
    level = TwoLevel(values, errors, before)
    ratio = as_estimate(level, level.interval(), 0.95)
    error = sqrt((between.sd**2 + float(np.median(np.square(errors)))) / rule.max_pairs)
    floor = float(expm1(known_radius(error, rule.alpha)))
    if not ratio.low <= 1.0 <= ratio.high:
        floor = max(floor, exp(abs(log(ratio.value))) - 1)
    return Noise(
        aa_ratio=ratio,
        floor=floor,
        ratios=comparison.ratios,
        process_sd=between.sd,
        process_dof=between.dof,
        block_sd=scatter(None, comparison.pairs),
        foreign_cores=comparison.incumbent.foreign_cores,
    )


def learned(noise: Noise, comparison: Comparison) -> Noise:
    """The noise with what one more comparison shows about the between-process variance; ratio and floor stay those of
    the control: they are in the report as they were measured."""
    between = between_process_of(noise).after(*comparison.logs)
    known = {"process_sd": between.sd, "process_dof": between.dof}
    return noise.model_copy(update={**known, "block_sd": scatter(noise.block_sd, comparison.pairs)})


def doubts(noise: Noise, comparison: Comparison) -> list[str]:
    """Why the figures of this run may be doubtful, each with what to do about it; empty on a good machine."""
    found = []
    if noise.busy:
        found.append(
            f"other programs used {noise.foreign_cores:.1f} cores while the baseline was measured, which slows a plan "
            "down the more threads it has: stop them, or expect gains under this load only"
        )
    if comparison.disturbed_share is not None and comparison.disturbed_share > _DISTURBED:
        found.append(
            f"other processes disturbed {100 * comparison.disturbed_share:.0f} % of the block pairs (left out): "
            "stop other programs, or give the run more budget"
        )
    if noise.floor is not None and noise.floor > _FLOOR:
        found.append(
            f"the noise floor is {100 * noise.floor:.1f} %: smaller gains are within noise; "
            "a larger budget or a quieter machine lowers it"
        )
    ratio = noise.aa_ratio
    if ratio is not None and not ratio.low <= 1.0 <= ratio.high:
        found.append(
            f"the baseline against itself reads {ratio.text('.3f', '')}, which does not contain 1: something favors "
            "one side; run again on a quieter machine"
        )
    times = comparison.incumbent.block_step_seconds
    third = len(times) // 3
    drift = float(np.median(times[-third:]) / np.median(times[:third])) - 1.0 if third >= 4 else 0.0
    if abs(drift) > _DRIFT:
        found.append(
            f"the machine became {abs(drift):.0%} {'slower' if drift > 0 else 'faster'} during the measurement (clock "
            "or heat): paired ratios hold, absolute times do not; fix the clock or let it warm up first"
        )
    again = compiled_again(comparison.incumbent) or compiled_again(comparison.candidate)
    return [*found, again] if again else found


def compiled_again(side: Side) -> str:
    """A sentence where a side compiled again during measured steps, with what to do; empty where it did not."""
    if not side.recompilations:
        return ""
    return (
        "torch.compile compiled again during measured steps: shapes change from batch to batch; "
        "compile with dynamic=True, or make the batches equal"
    )
