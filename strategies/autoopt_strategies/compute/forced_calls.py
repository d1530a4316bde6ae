"""Forced calls: garbage collected, caches emptied, devices waited for and anomalies looked for in every step of a
script, left out."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import LEAST_SHARE, tried_gain
from autoopt_strategies.trying import Setting

OFTEN = 0.5
"""Times a step from which on a line belongs to it."""
WAITS = ("torch.cuda.synchronize",)
"""The device is no sooner done where nobody waits for it."""
OUTPUT = ("print",)
"""Printed values are the user's to leave out."""
ANOMALIES = ("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly")
"""Seen where they are called, once or in every step."""
_COLLECT = {"kind": "forced", "call": "gc.collect", "file": "train.py", "line": 9, "end_line": 9, "per_step": 1.0}


class ForcedCalls(Strategy):
    """Leaves out calls that a script makes in every step, and that are no part of training.

    What it does: ``gc.collect()``, ``torch.cuda.empty_cache()`` and ``torch.cuda.synchronize()`` do nothing at the
        lines that call them in each step, and ``torch.autograd.set_detect_anomaly(True)`` and ``detect_anomaly()``
        detect nothing; the patch takes these lines out, and a ``with`` block gets ``set_detect_anomaly(False)``.
    When it helps: a collection visits every object that lives, in each step; what an emptied cache gives
        back is asked for again in the next step; a device that is waited for stands idle while work is issued; anomaly
        detection keeps a stack trace of each operator and reads every gradient.
    When it does not: they take less than a hundredth of a step; a line that does something with what the call returns;
        detection that an option of your own switches on; printing, which is yours to leave out. In a ``build()`` they
        are advice, since its functions are your own.
    What it costs: garbage in cycles lives until Python collects by itself. Seconds that a script measures around such a
        wait become those of issuing work. The operator that makes a NaN is no longer named.
    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (unnecessary synchronization);
        https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    name = "forced_calls"
    title = "forced calls left out"
    stages = frozenset({"host"})
    risk = Risk.EXACT
    example = Example(
        {"calls": ["train.py:9 gc.collect"]},
        sites={
            "command": ["train.py"],
            "cwd": "/",
            "step_seconds": 0.1,
            "sites": [{**_COLLECT, "seconds_per_step": 0.05, "options": {"alone": True}}],
        },
    )

    def applies(self, case: Case) -> Applies:
        if case.sites is None:
            return Applies.no("the functions of a build() are its own: such calls are advice, with their lines")
        calls, anomalies = _forced(case)
        if anomalies:
            return Applies.yes()
        if not calls:
            return Applies.no("no such call stands alone in a line that the script runs in every step")
        share = _share(case)
        if share is None or share < LEAST_SHARE:
            text = "is not known" if share is None else f"is {share:.1%}"
            return Applies.no(f"the share of a step that they take {text} (watched)")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """A step without what they do themselves; the wait for a device that is left out may come back at the next."""
        share, own = _share(case), _share(case, but=WAITS)
        if share is None or own is None:
            return None
        without, most = (1.0 / (1.0 - min(part, 0.99)) for part in (own, share))
        calls = Estimate(value=without, low=1.0, high=most, n=1).as_kind("tried")
        if not _forced(case)[1]:
            return calls
        found = tried_gain(case, case.inspected(self.name).get("without"), ("forward", "backward"))
        if found is None:
            return None
        ends = ("value", "low", "high")
        return found.model_copy(update={end: getattr(found, end) * getattr(calls, end) for end in ends})

    def settings(self, case: Case) -> list[Setting]:
        return [{"calls": [f"{site.file}:{site.line} {site.call}" for sites in _forced(case) for site in sites]}]

    def inspect(self, live: Any) -> Setting:
        """Forward and backward without anomaly detection over those with it, tried on copies of the model."""
        return {"without": live.ratio_with(unchecked=True)} if live.training.finds_anomalies else {}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_flags(leave_out=tuple(setting["calls"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = "\n".join(f"# take out: {call}()" for call in setting["calls"])
        note = code.replace("\n", " ")
        edits = (Edit("left_out", lines=tuple(setting["calls"])),)
        return Recipe.noted(code, note, edits)


def _forced(case: Case) -> tuple[list[Any], list[Any]]:
    """Sites of the user's own lines within the script's folder: calls that stand alone in every step, and anomalies."""
    forced = case.sites.of("forced") if case.sites is not None else ()
    own = [site for site in forced if site.direct and not site.file.startswith("/") and site.call not in OUTPUT]
    often = [site for site in own if site.options.get("alone") and (site.per_step or 0.0) >= OFTEN]
    return [site for site in often if site.call not in ANOMALIES], [site for site in own if site.call in ANOMALIES]


def _share(case: Case, but: tuple[str, ...] = ()) -> float | None:
    """Of a watched step, the seconds in these lines, ``but`` those of some calls; None where it was not timed."""
    step = case.sites.step_seconds if case.sites is not None else None
    seconds = sum(site.seconds_per_step or 0.0 for site in _forced(case)[0] if site.call not in but)
    return None if not step else min(1.0, seconds / step)
