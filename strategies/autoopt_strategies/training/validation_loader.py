"""Validation loader: evaluation in larger batches, its workers kept, started where they help, or left out."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import (
    LEAST_SHARE,
    READING,
    SAMPLES,
    Setting,
    Settings,
    at_most,
    declared,
    gain,
    kept,
    sample_seconds,
    seconds_of,
)
from autoopt_strategies.compute.rewriting.source import edits_of
from autoopt_strategies.input.probes import spread, timed
from autoopt_strategies.input.workers import WORKER_START, most_workers, waits
from autoopt_strategies.training.evaluation_loop import (
    BATCHES,
    EvaluationLoop,
    Loop,
    loop_around,
    loop_without_gradients,
    statements,
)

LARGE_BATCH = 256
"""Samples that nearly fill what a step of evaluation costs once; four training batches where that is more."""
UNRECORDED = 0.8
"""Share of a forward pass's seconds that is left where nothing is recorded for gradients, about."""


class ValidationLoader(Strategy):
    """Evaluates in larger batches and without gradients, with the workers that the validation loader needs.

    What it does: sets ``batch_size``, ``num_workers``, ``persistent_workers`` or ``pin_memory`` of the validation
        loader alone. An evaluation has no gradients to store, so that several training batches fit where one did.
        Where a script evaluates on the training's data as well, or with several loaders, the loop itself gets the
        larger batches, in the same order and with the same draws; where it keeps what gradients would need, the loop
        goes into ``torch.no_grad()``.
    When it helps: evaluations take a good part of the run: in small batches, with gradients, with workers that are
        started for each of them, or with samples that are slow to prepare.
    When it does not: rare or short evaluations.
    What it costs: memory of larger batches, or of each worker. It is kept only where the same samples give the same
        metric; one that is averaged over batches of unequal size is not the same.
    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    name = "validation_loader"
    title = "evaluation in larger batches, without gradients, workers for it"
    stages = frozenset({"evaluate"})
    risk = Risk.EXACT
    after = frozenset({"workers"})
    example = Example(
        {"num_workers": 1, "persistent_workers": True},
        inspected={"batch_size": 1024, "num_workers": 0, "sample_seconds": 1e-2},
    )

    def applies(self, case: Case) -> Applies:
        loader, loop, gradients = _loader(self, case), _loop(case), _gradients(case)
        if isinstance(loader, str) and loop is None and gradients is None:
            return Applies.no(loader)
        if case.pipeline is not None and case.pipeline.step_seconds:
            seconds = seconds_of(case, "evaluate") if loop or gradients else _own_seconds(case)
            share = seconds / case.pipeline.step_seconds
            if share < LEAST_SHARE:
                return Applies.no(f"evaluation takes {share:.1%} of the time")
        if loop is not None or gradients is not None or isinstance(loader, str) or _options(case, loader):
            return Applies.yes()
        return Applies.no("its loader is set as it should be")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Larger batches share out what each costs once; workers share out the reading; others may save it all."""
        if "loop" in setting:
            return _loop_gain(case, setting)
        loader, evaluating, all_of_it = _loader(self, case), _own_seconds(case), seconds_of(case, "evaluate")
        if setting.keys() == {"no_grad"}:
            left = evaluating = all_of_it
        elif isinstance(loader, str) or not evaluating:
            return None
        else:
            left = _left(case, loader, setting, evaluating)
        if "no_grad" in setting:
            samples = None if isinstance(loader, str) else loader["samples"]
            left -= (1.0 - UNRECORDED) * min(_computing(case, samples, _every(case)) or left, left)
        if left < evaluating:
            return declared(gain(case, {"evaluate": max(left, 0.0) + all_of_it - evaluating}))
        return at_most(gain(case, {"evaluate": all_of_it - evaluating}))

    def settings(self, case: Case) -> Settings:
        loader, loop, gradients = _loader(self, case), _loop(case), _gradients(case)
        best: Setting = dict(case.plan.setting(self.name) or {})  # what was kept before stays
        if loop is not None and kept((yield {"batch_size": _large(case), "loop": loop})):
            return  # every loader that the loop goes over has them
        if "loop" in best:
            return
        unrecorded: Setting = {"no_grad": gradients} if gradients is not None else {}
        if isinstance(loader, str):
            if unrecorded:
                yield best | unrecorded
            return
        evaluating, now = _own_seconds(case), best
        for option in _options(case, loader):
            more = {**now, **option}
            if option.get("num_workers") == 0:  # torch refuses to keep workers that there are not
                more.pop("persistent_workers", None)
            slower = _left(case, loader, more, evaluating) >= _left(case, loader, best, evaluating)
            if not slower and kept((yield more | unrecorded)):
                best = more | unrecorded
        if unrecorded and "no_grad" not in best and kept((yield best | unrecorded)):
            best = best | unrecorded
        pinned = case.device == "cuda"
        if loader["pin_memory"] != pinned:
            yield {**best, "pin_memory": pinned}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        edit = _edit(setting)
        if edit is not None:
            setup = setup.with_model(EvaluationLoop(**edit))
        return setup.with_evaluation(**_of_loader(setting))

    def recipe(self, setting: Setting) -> Recipe:
        edit, options = _edit(setting), _of_loader(setting)
        lines = []
        if options:
            written = ", ".join(f"{name}={value!r}" for name, value in options.items())
            lines.append(f"valid_loader = DataLoader(valid_data, ..., {written})")
        if edit is not None and edit.get("no_grad"):
            lines.append(f"with torch.no_grad():  # around the loop in {edit['function']}")
        if edit is not None and "size" in edit:
            lines.append(f"for batch in in_batches_of(loader, {edit['size']}):  # in {edit['function']}")
        names = (BATCHES,) if edit is not None and "size" in edit else ()
        return Recipe.noted("\n".join(lines), edits=edits_of([edit], statements, *names) if edit is not None else ())

    def inspect(self, live: Any) -> Setting:
        """Options of the validation's loader, and the seconds that one of its samples takes."""
        data = live.workload.valid_data
        dataset = getattr(data, "dataset", data)
        indices = spread(dataset, SAMPLES)
        if not indices:
            return {"reason": "validation samples are not read by their index"}
        _, seconds = timed(dataset, indices)
        size = getattr(data, "batch_size", None) if data is not dataset else live.workload.batch_size
        options = {name: getattr(data, name, None) for name in ("num_workers", "persistent_workers", "pin_memory")}
        return {"batch_size": size, **options, "sample_seconds": seconds}


def _edit(setting: Setting) -> Setting | None:
    """The edit of the evaluation's loop, as :func:`statements` takes it; None where there is none."""
    if "loop" in setting:
        return {**setting["loop"], "size": setting["batch_size"]}
    return {**setting["no_grad"], "no_grad": True} if "no_grad" in setting else None


def _of_loader(setting: Setting) -> Setting:
    """Arguments of the validation's loader; none where its loop is edited to read larger batches."""
    return {} if "loop" in setting else {name: value for name, value in setting.items() if name != "no_grad"}


def _loader(strategy: ValidationLoader, case: Case) -> Setting | str:
    """The options of the loader under the incumbent; the reason where there is none to be changed.

    ``samples``: that an evaluation reads. ``sample_seconds``: of preparing one in one process; of a script, as the
    training's samples take.
    """
    facts, samples = case.workload, case.workload.valid_samples
    found: Setting = {"batch_size": None, "num_workers": 0, "persistent_workers": False, "pin_memory": False}
    if case.sites is not None:
        seen, run = case.sites.of("loader_validation"), facts.run
        if run is None or run.evaluation_seconds is None or not run.evaluate_every:
            return "no evaluation was seen while the script was watched"
        if len(seen) != 1:
            return "no evaluation with a DataLoader was seen" if not seen else "several loaders evaluate"
        samples, options = int(run.samples_per_evaluation) or None, dict(seen[0].options)
        options["sample_seconds"] = sample_seconds(case)
    else:
        options = dict(case.inspected(strategy.name))
        if not facts.has_evaluate or not samples:
            return "there is no evaluation of a known length"
        if options.get("sample_seconds") is None:
            return str(options.get("reason") or "what reading a validation sample takes is not known")
        shared = ("num_workers", "persistent_workers", "pin_memory")
        options |= {name: case.setup.loader[name] for name in shared if name in case.setup.loader}
    known = {name: value for name, value in (options | dict(case.setup.evaluation)).items() if value is not None}
    return {**found, "sample_seconds": None, **known, "samples": samples}


def _evaluations(case: Case) -> tuple[Any, ...]:
    """Evaluations of a script as they were seen while it was watched."""
    return case.workload.run.evaluations if case.workload.run is not None else ()


def _loop(case: Case) -> Loop | None:
    """The loop of a script's evaluations, where it goes over more than one loader that only evaluates.

    None where there is none, where models are left in training mode, where no loader is read (a model that writes text
    calls itself in a loop, too), or where the batches are large already.
    """
    seen = _evaluations(case)
    if case.sites is None or not seen or any(each.training_mode or each.file is None for each in seen):
        return None
    several = len(case.sites.of("loader_validation")) > 1 or any(each.training_data for each in seen)
    places = {(each.file, each.line) for each in seen}
    if not several or len(places) != 1 or 2 * _usual_size(case) > _large(case):
        return None
    ((file, line),) = places
    found = loop_around(Path(case.sites.cwd, file or ""), line or 0)
    if found is None:
        return None
    return {"file": file, **found} | ({"no_grad": True} if _gradients(case) else {})


def _gradients(case: Case) -> Loop | None:
    """The loop of a script's evaluations that keeps what gradients would need; None where there is none to edit."""
    places = {(each.file, each.line) for each in _evaluations(case) if each.gradients}
    if case.sites is None or len(places) != 1 or "no_grad" in (case.plan.setting("validation_loader") or {}):
        return None
    ((file, line),) = places
    found = loop_without_gradients(Path(case.sites.cwd, file or ""), line or 0)
    return None if found is None else {"file": file, **found}


def _usual_size(case: Case) -> float:
    """Samples of a batch of evaluations, as they were seen; no bound where they were not counted."""
    seen = _evaluations(case)
    samples, batches = (sum(getattr(each, name) or 0 for each in seen) for name in ("samples", "batches"))
    return samples / batches if samples and batches else float("inf")


def _large(case: Case) -> int:
    return max(LARGE_BATCH, 4 * (case.workload.batch_size or 0))


def _loop_gain(case: Case, setting: Setting) -> Estimate | None:
    """Larger batches share out what each costs once; what reading a sample takes stays."""
    seen = _evaluations(case)
    samples, every = sum(each.samples or 0 for each in seen) // max(len(seen), 1), _every(case)
    now = seconds_of(case, "evaluate")
    reading = sum(seconds_of(case, name) for name in READING)
    reading *= samples / max(case.workload.batch_size or 1, 1) / every
    least = min(_computing(case, samples, every) + reading, now)
    return declared(gain(case, {"evaluate": least + (now - least) * _usual_size(case) / setting["batch_size"]}))


def _options(case: Case, loader: Setting) -> list[Setting]:
    """Batches, workers, and both, that may shorten an evaluation: the likeliest first."""
    large = min(_large(case), loader["samples"] or _large(case))
    batches: list[Setting] = [{}]
    if loader["batch_size"] and 2 * loader["batch_size"] <= large:
        batches.append({"batch_size": large})
    workers: list[Setting] = [{}]
    if loader["num_workers"]:
        workers.append({"num_workers": 0})
    if (loader["sample_seconds"] or 0.0) * (loader["samples"] or 0) > WORKER_START:
        most = max(1, min(4, case.environment.cores or 1))
        if waits(case):
            most = most_workers(case, most)
        numbers = {most, max(most // 2, 1), loader["num_workers"]} - {0}
        kept_now = loader["num_workers"] if loader["persistent_workers"] else 0
        workers += [{"num_workers": n, "persistent_workers": True} for n in sorted(numbers - {kept_now})]
    evaluating = _own_seconds(case)
    found = [{**batch, **number} for batch in batches for number in workers if batch or number]
    left = [(_left(case, loader, option, evaluating), len(option)) for option in found]
    return [option for _, option in sorted(zip(left, found, strict=True), key=lambda each: each[0])]


def _left(case: Case, loader: Setting, setting: Setting, evaluating: float) -> float:
    """Seconds of evaluations for each step under a setting, where they take ``evaluating`` as they are.

    Workers share out the reading, and take their start; what else a batch costs once is shared between its samples.
    """
    every = _every(case)
    now = {name: loader[name] for name in ("batch_size", "num_workers", "persistent_workers")}
    then = now | ({"persistent_workers": False} if "num_workers" in setting else {}) | setting
    computing = min(_computing(case, loader["samples"], every), evaluating)
    alone = (loader["sample_seconds"] or 0.0) * (loader["samples"] or 0) / every
    reading = min(alone * _share(case, loader, now), evaluating - computing)
    starting = min(_starting(case, now), evaluating - computing - reading)
    each_batch = evaluating - computing - reading - starting
    if now["batch_size"] and then["batch_size"]:
        each_batch *= now["batch_size"] / then["batch_size"]
    reading *= _share(case, loader, then) / _share(case, loader, now)
    return computing + reading + _starting(case, then) + each_batch


def _starting(case: Case, options: Setting) -> float:
    """Seconds in which an evaluation's workers start, for each step: once a run where they are kept."""
    every = max(_every(case), case.planned_steps or 0) if options["persistent_workers"] else _every(case)
    workers = 0 if case.loader_option("persistent_workers") else case.loader_option("num_workers") or 0
    seen = seconds_of(case, "epoch") * (case.workload.steps_per_epoch or 0)
    each = seen / workers if seen and workers else WORKER_START  # as the training's do where they are seen to
    return float(options["num_workers"] * each / every)


def _share(case: Case, loader: Setting, options: Setting) -> float:
    """Share of the seconds of reading alone that is left with workers, each of which prepares whole batches."""
    workers = options["num_workers"]
    if not workers:
        return 1.0
    batches = ceil((loader["samples"] or 1) / (options["batch_size"] or 1))
    least = 0.0 if waits(case) else 1.0 / (min(workers, case.environment.cores or 1) + 1)
    return float(max(ceil(batches / workers) / batches, least))


def _every(case: Case) -> float:
    """Training steps between two evaluations."""
    facts = case.workload
    watched = facts.run.evaluate_every if facts.run is not None else None
    return case.setup.cadence.evaluate_every or watched or facts.evaluate_every or facts.steps_per_epoch or 1


def _own_seconds(case: Case) -> float:
    """Seconds of evaluations for each step, those that read the training's loader apart."""
    seen = _evaluations(case)
    whole = sum(each.seconds for each in seen)
    on_training = sum(each.training_data_seconds or 0.0 for each in seen)
    return seconds_of(case, "evaluate") * (1.0 - min(on_training / whole, 1.0) if whole else 1.0)


def _computing(case: Case, samples: int | None, every: float) -> float:
    """Seconds of an evaluation's forward passes at the rate of the training's, for each step of the training."""
    batch = (case.workload.batch_size or 1) * max(case.workload.accumulation, 1)
    return seconds_of(case, "forward") / batch * (samples or 0) / every
