"""Cached features: what frozen modules make of a sample is computed once, and not in every epoch."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.input.prepared_samples import FREE, samples_repeat
from autoopt_strategies.predictions import LEAST_SAVING, PATIENCE, after_paying, sample_seconds
from autoopt_strategies.trying import Setting

MOST_VARIANTS = 4
"""Of a sample, as of a flip and a transposition: of more, most are new in most epochs."""
PART = "autoopt.benchmark.kept_outputs:kept_outputs"
_TEACHER = {"kind": "frozen", "call": "teacher", "file": "train.py", "line": 9, "end_line": 9}
_TIMES = {"path": "", "seconds": 0.05, "kept_seconds": 0.001, "row_bytes": 40}


class CachedFeatures(Strategy):
    """Keeps what frozen modules make of each sample, such as a teacher's answers or a backbone's features.

    What it does: where a script's lines call a module without anything to learn on samples as the loader gave them, the
        call goes through a function that knows samples by their bytes: one that came before has its output taken from
        memory. When a weight of the module changes, all outputs are forgotten.
    When it helps: distillation from a teacher, heads on a frozen backbone, frozen encoders; several epochs are planned.
    When it does not: samples are augmented in more than a few ways, so that hardly any comes twice; modules in training
        mode whose BatchNorm or dropout makes other outputs each time (``backbone.eval()`` is yours to decide); averages
        of the trained weights; models of a library that are frozen but for their last layer.
    What it costs: memory for the outputs of all samples; the first epoch takes what it took. Results differ in the last
        bits where a batch of another size rounds otherwise.
    Source: Donahue et al., "DeCAF: a deep convolutional activation feature for generic visual recognition", ICML 2014;
        Shen and Xing, "A fast knowledge distillation framework for visual recognition", ECCV 2022
    """

    name = "cached_features"
    title = "outputs of frozen modules kept"
    stages = frozenset({"forward"})
    risk = Risk.NUMERIC
    after = frozenset({"prepared_samples"})
    example = Example(
        {"calls": ["train.py:9 teacher"]},
        inspected={"prepared_samples": {"kept": {"deterministic": True}}},
        sites={"command": ["train.py"], "cwd": "/", "step_seconds": 0.1, "sites": [{**_TEACHER, "options": _TIMES}]},
    )

    def applies(self, case: Case) -> Applies:
        if case.sites is None:
            return Applies.no("which frozen modules a step calls is seen in a script alone")
        if case.setup.flags.get("kept_outputs"):
            return Applies.no("outputs of frozen modules are kept already")
        seen = case.sites.of("frozen")
        if not seen:
            return Applies.no("its training steps were not seen to call a module without anything to learn")
        if not _found(case):
            reason = seen[0].options.get("reason") or "looking its outputs up takes as long as making them"
            return Applies.no(f"{seen[0].file}:{seen[0].line} {seen[0].call}: {reason}")
        if case.workload.dataset.changes or _variants(case) > MOST_VARIANTS:
            return Applies.no("samples are augmented, or not known to be the same every time: few come twice")
        rows, free = _variants(case) * (case.workload.train_samples or 0), case.workload.available_ram_bytes
        size = sum(float(site.options["row_bytes"]) for site in _found(case)) * rows
        if free is None or size > FREE["memory"] * free:
            return Applies.no(f"the outputs would take {size / 1e9:.1f} GB, or how much memory is free is not known")
        once = self.once_seconds(case, {})
        if once is not None and case.seconds_left is not None and once > PATIENCE * case.seconds_left:
            return Applies.no(f"making all outputs takes {once:.0f} s of {case.seconds_left:.0f} s left for the search")
        if _saved(case) < LEAST_SAVING * (case.pipeline.step_seconds if case.pipeline is not None else 0.0):
            return Applies.no("the frozen modules take too little of a step")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """A step without the calls, with what looking their outputs up takes; the first epoch saves nothing."""
        if case.pipeline is None:
            return None
        facts, step, saved = case.workload, case.pipeline.step_seconds, _saved(case)
        value = step / max(step - saved, 0.05 * step)
        estimate = Estimate(value=value, low=1.0 + 0.5 * (value - 1.0), high=1.0 + 1.5 * (value - 1.0), n=1)
        seen = (case.planned_steps or 0) * (facts.batch_size or 1)
        epochs = seen / facts.train_samples if facts.train_samples else 1.0
        return after_paying(case, estimate.as_kind("tried"), _computing(case, epochs))

    def once_seconds(self, case: Case, setting: Setting) -> float | None:
        """All samples read once and given to the modules: what a trial does first, and a first epoch does anyway."""
        return _computing(case, 1.0) + (sample_seconds(case) or 0.0) * (case.workload.train_samples or 0)

    def settings(self, case: Case) -> list[Setting]:
        return [{"calls": [" ".join((f"{s.file}:{s.line}", s.call, s.options["path"])).strip() for s in _found(case)]}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_flags(kept_outputs=tuple(setting["calls"]))

    def recipe(self, setting: Setting) -> Recipe:
        places = [call.split()[:2] for call in setting["calls"]]
        edits = tuple(
            Edit("call", (*place.rsplit(":", 1), name, "kept_outputs({called}, {arguments})"), parts=(PART,))
            for place, name in places
        )
        names = ", ".join(dict.fromkeys(name for _, name in places))
        return Recipe.noted(f"kept_outputs({names}, x)  # frozen: computed once for each sample", edits=edits)


def _found(case: Case) -> list[Any]:
    """Calls whose outputs can be kept, and are sooner looked up than made."""
    known = (site for site in (case.sites.of("frozen") if case.sites else ()) if "reason" not in site.options)
    return [site for site in known if site.options["kept_seconds"] < site.options["seconds"]]


def _saved(case: Case) -> float:
    """Seconds of a step that are saved once all samples have come."""
    return float(sum(site.options["seconds"] - site.options["kept_seconds"] for site in _found(case)))


def _variants(case: Case) -> float:
    """Different samples that augmentation makes of one, as far as was tried."""
    found = (float(site.options.get("variants") or inf) for site in _found(case))
    return 1.0 if samples_repeat(case) else max(found, default=inf)


def _computing(case: Case, epochs: float) -> float:
    """Seconds in which the modules are given all samples that are new in so many epochs."""
    facts, variants = case.workload, _variants(case)
    new = variants * (1.0 - (1.0 - 1.0 / variants) ** max(epochs, 1.0)) if isfinite(variants) else epochs
    each = sum(float(site.options["seconds"]) for site in _found(case)) / (facts.batch_size or 1)
    return new * each * (facts.train_samples or 0)
