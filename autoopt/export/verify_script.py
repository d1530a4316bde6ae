"""``autoopt verify`` of a script: whole runs of the patched script next to the untouched one, nothing listening."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from autoopt.errors import TrialFailed, UsageError
from autoopt.export.applying import patched_texts
from autoopt.export.checked import Checked, judged
from autoopt.records import Estimate, Result
from autoopt.records.headline import AGREEMENT
from autoopt.script.command import Build, parse
from autoopt.script.whole_run import WholeRun, whole_run
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.trial.protocol import ScriptSpec

UNTOUCHED, PATCHED = "untouched", "patched"

Run = Callable[[str, float], WholeRun]
"""``run(side, timeout)``, one whole run of a side."""


def verify_script(run: Path, result: Result, *, seconds: float) -> Checked:
    """Whole runs of both sides one after the other, the order within a pair drawn at random, until the time is up; one
    pair at least.

    Args:
        run: the run directory, which is named in messages.
        result: its document.
        seconds: wall-clock for all of them.

    Raises:
        UsageError: there is no patch, or it does not fit the script as it is.
        EnvironmentLacks: the script cannot be given a view of its folder.
    """
    sides = _sides(run, result)
    directory, metric = sides[UNTOUCHED].folders[0], result.objective.metric

    def one(side: str, timeout: float) -> WholeRun:
        return whole_run(sides[side], directory, timeout=timeout, metric=metric)

    return measured(one, result, seconds=seconds, clock=time.monotonic, rng=np.random.default_rng())


def measured(
    run: Run, result: Result, *, seconds: float, clock: Callable[[], float], rng: np.random.Generator
) -> Checked:
    """Findings over as many pairs as fit.

    Args:
        run: one whole run of a side.
        rng: draws the orders.

    Raises:
        UsageError: not one pair fits the time.
    """
    began, pairs = clock(), list[dict[str, WholeRun]]()
    while not pairs or clock() + (clock() - began) / len(pairs) <= began + seconds:
        pair: dict[str, WholeRun] = {}
        for place in rng.permutation(2):
            side = (UNTOUCHED, PATCHED)[place]
            left = began + seconds - clock()
            try:
                # a pair that was seen to fit may take longer, but not for ever
                pair[side] = run(side, left if not pairs else max(left, seconds))
            except TrialFailed as failure:
                if failure.kind == "timeout" and not pairs:
                    raise UsageError(
                        f"{seconds:.0f} s do not hold a pair of whole runs: the {side} script was not at its end",
                        hint="give more with --budget",
                    ) from failure
                return Checked(holds=False, kind="whole_runs", detail=f"the {side} script failed: {failure.reason}")
        pairs.append(pair)
    return _summed_up(pairs, result, clock() - began)


def _summed_up(pairs: Sequence[dict[str, WholeRun]], result: Result, seconds: float) -> Checked:
    ratio = ratio_of_pairs(
        [math.log(pair[UNTOUCHED].seconds / pair[PATCHED].seconds) for pair in pairs], result.noise.process_sd
    )
    each = ", ".join(f"{pair[UNTOUCHED].seconds:.1f} s to {pair[PATCHED].seconds:.1f} s" for pair in pairs)
    reported = _reported(result)
    found = Checked(
        holds=ratio.high > 1.0,
        detail=f"whole runs, untouched to patched: {each}",
        headline_measured=ratio,
        headline_reported=reported,
        kind="whole_runs",
        seconds=seconds,
    )
    if reported is not None:
        again = judged(ratio, reported, margin=AGREEMENT)
        found = found.model_copy(update={"holds": again.holds, "detail": f"{again.detail}; {found.detail}"})
    worse = _worse(pairs, result)
    if worse is not None:
        detail = f"{found.detail}; {result.objective.metric} {worse[1]}"
        found = found.model_copy(update={"holds": found.holds and worse[0], "detail": detail})
    return found


def _reported(result: Result) -> Estimate | None:
    """The speedup of as many steps that the run reported: what whole runs, which all take the same steps, can show."""
    headline = result.speedup.headline
    if headline is None:
        return None
    return headline.step_ratio if headline.kind == "to_target" else (headline.estimate or headline.step_ratio)


def _worse(pairs: Sequence[dict[str, WholeRun]], result: Result) -> tuple[bool, str] | None:
    """Whether the metric at the end is no worse within the tolerance, and in words; None where none was printed."""
    ends = [(pair[UNTOUCHED].metric, pair[PATCHED].metric) for pair in pairs]
    both = [(old, new) for old, new in ends if old is not None and new is not None]
    if not both:
        return None
    old, new = (float(np.mean(side)) for side in zip(*both, strict=True))
    loss = (new - old) if result.objective.mode == "min" else (old - new)
    allowed = result.objective.tolerance * abs(old)
    fine = loss <= allowed
    verdict = "within the tolerance" if fine else f"worse than the tolerance of {allowed:.3g} allows"
    return fine, f"{old:.4g} to {new:.4g}, mean of {len(both)}: {verdict}"


def _sides(run: Path, result: Result) -> dict[str, ScriptSpec]:
    sites = result.sites
    assert sites is not None, "it is a script's run"
    if result.patch is None or not result.patch.diff:
        raise UsageError(f"{run} holds no patch: nothing was kept, or no line of the script says it")
    workload = parse(result.workload.spec)
    folder = Path(sites.cwd)
    if isinstance(workload, Build) or not folder.is_dir():
        raise UsageError(f"the script was run in {folder}, which is not there", hint="run `autoopt optimize` again")
    workload.check(folder)
    plain = workload.in_trials(folder)
    if plain.launch is not None:
        raise UsageError(
            f"{workload.words[0]} starts the processes of this script, and whole runs are of one process",
            hint=f"autoopt compare --candidate {run}",
        )
    texts = patched_texts(result.patch.diff, [folder])
    return {UNTOUCHED: plain, PATCHED: plain.model_copy(update={"patched": texts})}
