"""Validation loader: evaluation in larger batches, of samples that are kept, with the workers that help or none."""

from __future__ import annotations

import ast
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import ceil
from pathlib import Path
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.source import Edits, Refused, edits_of, function_of, module_name, rewritten
from autoopt_strategies.input import probes
from autoopt_strategies.input.prepared_samples import (
    PREPARED,
    WRAPPERS,
    evaluated_alike,
    evaluation_reads,
    reading_seconds,
    samples_repeat,
    with_room,
)
from autoopt_strategies.input.workers import WORKER_START, most_workers, waits
from autoopt_strategies.predictions import LEAST_SHARE, READING, at_most, declared, gain, sample_seconds, seconds_of
from autoopt_strategies.trying import Setting, Settings, kept

LARGE_BATCH = 256
"""Samples that nearly fill what a step of evaluation costs once; four training batches where that is more."""
UNRECORDED = 0.8
"""Share of a forward pass's seconds that is left where nothing is recorded for gradients, about."""


class ValidationLoader(Strategy):
    """Evaluates in larger batches and without gradients, of kept samples or with the workers that it needs.

    What it does: sets ``batch_size``, ``num_workers``, ``persistent_workers`` or ``pin_memory`` of the validation
        loader alone. An evaluation has no gradients to store, so that several training batches fit where one did.
        Samples that are the same in every evaluation are read once, before the first step, and kept (``samples``).
        Where a script evaluates on the training's data as well, or a function makes the loaders of both, the loop
        itself gets the larger batches, in the same order and with the same draws; where it keeps what gradients would
        need, the loop goes into ``torch.no_grad()``.
    When it helps: evaluations take a good part of the run: in small batches, with gradients, with workers that are
        started for each of them, or with samples that are slow to prepare.
    When it does not: rare or short evaluations.
    What it costs: memory of larger batches, or of each worker. It is kept only where the same samples give the same
        metric; one that is averaged over batches of unequal size is not the same.
    Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    name = "validation_loader"
    title = "evaluation in larger batches, without gradients, of kept samples"
    stages = frozenset({"evaluate"})
    risk = Risk.EXACT
    after = frozenset({"workers", "prepared_samples"})
    example = Example(
        {"num_workers": 1, "persistent_workers": True},
        inspected={"batch_size": 1024, "num_workers": 0, "sample_seconds": 1e-2},
    )

    def applies(self, case: Case) -> Applies:
        loader, edited = _loader(case), _loop(case) or _gradients(case)
        if isinstance(loader, str) and edited is None:
            return Applies.no(loader)
        if case.pipeline is not None and case.pipeline.step_seconds:
            seconds = _own_seconds(case) if edited is None else seconds_of(case, "evaluate")
            share = seconds / case.pipeline.step_seconds
            if share < LEAST_SHARE:
                return Applies.no(f"evaluation takes {share:.1%} of the time")
        if edited is not None or isinstance(loader, str) or _options(case, loader):
            return Applies.yes()
        return Applies.no("its loader is set as it should be")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Larger batches share out what each costs once; workers share out the reading; others may save it all."""
        loader, evaluating, all_of_it = _loader(case), _own_seconds(case), seconds_of(case, "evaluate")
        if "loop" in setting:  # what computing and reading the samples takes stays
            seen = _evaluations(case)
            samples = sum(each.samples or 0 for each in seen) // max(len(seen), 1)
            reading = sum(seconds_of(case, name) for name in READING) * samples / (case.workload.batch_size or 1)
            least = min(_computing(case, samples) + reading / _every(case), all_of_it)
            left = least + (all_of_it - least) * _usual_size(case) / setting["batch_size"]
            return declared(gain(case, {"evaluate": left}))
        if setting.keys() == {"no_grad"}:
            left = evaluating = all_of_it
        elif isinstance(loader, str) or not evaluating:
            return None
        else:
            left = _left(case, loader, setting)
        if "no_grad" in setting:
            samples = None if isinstance(loader, str) else loader["samples"]
            left -= (1.0 - UNRECORDED) * min(_computing(case, samples) or left, left)
        if left != evaluating:  # longer, where nothing is left for workers to read
            return declared(gain(case, {"evaluate": max(left, 0.0) + all_of_it - evaluating}))
        return at_most(gain(case, {"evaluate": all_of_it - evaluating}))

    def settings(self, case: Case) -> Settings:
        loader, loop, gradients = _loader(case), _loop(case), _gradients(case)
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
        now = best
        for option in _options(case, loader):
            more = {**now, **option}
            if option.get("num_workers") == 0:  # torch refuses to keep workers that there are not
                more.pop("persistent_workers", None)
            elif "num_workers" in option:  # they read the samples again
                more.pop("samples", None)
            quicker = _left(case, loader, more) < _left(case, loader, best)
            if quicker and kept((yield more | unrecorded)):
                best = more | unrecorded
        if unrecorded and "no_grad" not in best and kept((yield best | unrecorded)):
            best = best | unrecorded
        pinned = case.device == "cuda"
        if loader["pin_memory"] != pinned:
            yield {**best, "pin_memory": pinned}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        edit, options = _divided(setting)
        if "samples" in options:
            how = {name: value for name, value in options.pop("samples").items() if value}
            kind = WRAPPERS["samples"][how.pop("where") == "disk"]
            options["dataset"] = Wrap(f"{PREPARED}:{kind}", tuple(how.items()))
        return (setup.with_model(EvaluationLoop(**edit)) if edit else setup).with_evaluation(**options)

    def recipe(self, setting: Setting) -> Recipe:
        edit, options = _divided(setting)
        lines, data = [], "valid_data"
        if options.pop("samples", None):
            lines.append("valid_samples = [valid_data[i] for i in range(len(valid_data))]  # once, before training")
            data = "valid_samples"
        if options:
            written = ", ".join(f"{name}={value!r}" for name, value in options.items())
            lines.append(f"valid_loader = DataLoader({data}, ..., {written})")
        if edit.get("no_grad"):
            lines.append(f"with torch.no_grad():  # around the loop in {edit['function']}")
        if "size" in edit:
            lines.append(f"for batch in in_batches_of(loader, {edit['size']}):  # in {edit['function']}")
        named = (in_batches_of,) if "size" in edit else ()
        return Recipe.noted("\n".join(lines), edits=edits_of([edit], statements, *named) if edit else ())

    def inspect(self, live: Any) -> Setting:
        """Options of the validation's loader, what one of its samples takes, and whether it is the same every time."""
        loaders = live.training.validation_data
        datasets = [getattr(data, "dataset", data) for data in loaders]
        if not datasets or not all(map(probes.spread, datasets)):
            return {"reason": "validation samples are not read by their index"}
        data, found = loaders[0], probes.all_repeated(datasets)
        size = getattr(data, "batch_size", None) if data is not datasets[0] else live.workload.batch_size
        options = {name: getattr(data, name, None) for name in ("num_workers", "persistent_workers", "pin_memory")}
        return {**found, "loaders": len(loaders), "batch_size": size, **options}


def _divided(setting: Setting) -> tuple[Setting, Setting]:
    """The edit of the evaluation's loop, as :func:`statements` takes it, and arguments of the validation's loader.

    Either may be empty: a loop that is edited reads larger batches from every loader.
    """
    if "loop" in setting:
        return {**setting["loop"], "size": setting["batch_size"]}, {}
    edit = {**setting["no_grad"], "no_grad": True} if "no_grad" in setting else {}
    return edit, {name: value for name, value in setting.items() if name != "no_grad"}


def _loader(case: Case) -> Setting | str:
    """The options of the loader under the incumbent; the reason where there is none to be changed.

    Several loaders of a script are as one, whose batches are the smallest. ``samples``: that an evaluation reads.
    ``sample_seconds``: of preparing one in one process; of a script, as the training's samples take.
    """
    facts, samples = case.workload, case.workload.valid_samples
    found: Setting = {"batch_size": None, "num_workers": 0, "persistent_workers": False, "pin_memory": False}
    if case.sites is not None:
        seen, run = case.sites.of("loader_validation"), facts.run
        if run is None or run.evaluation_seconds is None or not run.evaluate_every:
            return "no evaluation was seen while the script was watched"
        if not seen:
            return "no evaluation with a DataLoader was seen"
        least = min(seen, key=lambda site: site.options.get("batch_size") or 0)
        samples, options = int(run.samples_per_evaluation) or None, dict(least.options)
        inspected = case.inspected(ValidationLoader.name)
        seconds = inspected.get("sample_seconds") or sample_seconds(case)
        options["sample_seconds"] = seconds and seconds * evaluation_reads(case)
    else:
        options = dict(case.inspected(ValidationLoader.name))
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


def _around(case: Case, seen: Sequence[Any], find: Callable[[Path, int], Setting | None]) -> Setting | None:
    """The loop around the line where evaluations call the model; None where several lines do, or none."""
    places = {(each.file, each.line) for each in seen}
    if case.sites is None or len(places) != 1:
        return None
    ((file, line),) = places
    found = find(Path(case.sites.cwd, file or ""), line or 0)
    return None if found is None else {"file": file, **found}


def _loop(case: Case) -> Setting | None:
    """The loop of a script's evaluations, where it goes over more than loaders whose lines make no others.

    None where there is none, where models are left in training mode, where each batch draws numbers, where no loader is
    read (a model that writes text calls itself in a loop, too), or where the batches are large already.
    """
    seen = _evaluations(case)
    if case.sites is None or any(each.training_mode or each.draws or each.file is None for each in seen):
        return None
    sites = [case.sites.of(kind) for kind in ("loader_training", "loader_validation")]
    made = [{(site.file, site.line, site.end_column) for site in found} for found in sites]
    shared = bool(made[0] & made[1]) or any(each.training_data for each in seen)
    if not shared or 2 * _usual_size(case) > _large(case):
        return None
    found = _around(case, seen, loop_around)
    return found and found | ({"no_grad": True} if _gradients(case) else {})


def _gradients(case: Case) -> Setting | None:
    """The loop of a script's evaluations that keeps what gradients would need; None where there is none to edit."""
    if "no_grad" in (case.plan.setting("validation_loader") or {}):
        return None
    return _around(case, [each for each in _evaluations(case) if each.gradients], loop_without_gradients)


def _usual_size(case: Case) -> float:
    """Samples of a batch of evaluations, as they were seen; no bound where they were not counted."""
    seen = _evaluations(case)
    samples, batches = (sum(getattr(each, name) or 0 for each in seen) for name in ("samples", "batches"))
    return samples / batches if samples and batches else float("inf")


def _large(case: Case) -> int:
    return max(LARGE_BATCH, 4 * (case.workload.batch_size or 0))


def _options(case: Case, loader: Setting) -> list[Setting]:
    """Batches, workers, and both, that may shorten an evaluation: the likeliest first."""
    large = min(_large(case), loader["samples"] or _large(case))
    batches: list[Setting] = [{}]
    drawn = any(each.draws for each in _evaluations(case))  # for each batch: larger ones get other numbers
    if loader["batch_size"] and 2 * loader["batch_size"] <= large and not drawn:
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
    keeping = _keeping(case, loader)
    if not isinstance(keeping, str):
        workers.append({"samples": keeping, "num_workers": 0})
    found = [{**batch, **number} for batch in batches for number in workers if batch or number]
    return sorted(found, key=lambda option: (_left(case, loader, option), len(option)))


def _keeping(case: Case, loader: Setting) -> Setting | str:
    """Where the validation's samples are kept, and who reads them once; or why they are not."""
    found, sites = dict(case.inspected(ValidationLoader.name)), case.sites
    if not found.get("deterministic"):
        return "validation samples are not known to be the same every time"
    if not loader["batch_size"]:
        return "the loader does not batch, so that an evaluation might change a kept sample in place"
    if sites is not None:
        made = sum(max(len(site.calls), 1) for site in sites.of("loader_validation"))
        if made > found.get("loaders", 1):
            return "each evaluation makes a dataset of its own, whose samples would be read again"
        if samples_repeat(case) and evaluated_alike(case):
            return "they are kept as the training's samples are"
    return with_room(case, found, loader["samples"] or 0)


def _left(case: Case, loader: Setting, setting: Setting) -> float:
    """Seconds of evaluations for each step under a setting.

    Workers share out the reading, and take their start; what else a batch costs once is shared between its samples.
    """
    every, evaluating = _every(case), _own_seconds(case)
    now = {name: loader[name] for name in ("batch_size", "num_workers", "persistent_workers")}
    then = now | ({"persistent_workers": False} if "num_workers" in setting else {}) | setting
    computing = min(_computing(case, loader["samples"]), evaluating)
    alone = (loader["sample_seconds"] or 0.0) * (loader["samples"] or 0) / every
    reading = min(alone * _share(case, loader, now), evaluating - computing)
    starting = min(_starting(case, now), evaluating - computing - reading)
    each_batch = evaluating - computing - reading - starting
    if now["batch_size"] and then["batch_size"]:
        each_batch *= now["batch_size"] / then["batch_size"]
    if "samples" in setting:
        found, samples = dict(case.inspected(ValidationLoader.name)), loader["samples"] or 0
        once = reading_seconds(found, samples, setting["samples"]) / max(case.planned_steps or every, every)
        reading = once
    else:
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


def _computing(case: Case, samples: int | None) -> float:
    """Seconds of an evaluation's forward passes at the rate of the training's, for each step of the training."""
    batch = (case.workload.batch_size or 1) * max(case.workload.accumulation, 1)
    return seconds_of(case, "forward") / batch * (samples or 0) / _every(case)


# The loop of an evaluation in a script's source: larger batches, no gradients; in trials, and in a patch.


def loop_around(path: Path, line: int) -> Setting | None:
    """The innermost loop over a loader around a line: its function's qualified name, and its own line.

    Args:
        path: of the file.
        line: where the model is called.

    Returns:
        None where no function, or no loop over a name, stands there.
    """
    loops = [(name, loop) for name, loop in _loops(path, line)[1] if _loader_of(loop) is not None]
    return {"function": loops[-1][0], "line": loops[-1][1].lineno} if loops else None


def loop_without_gradients(path: Path, line: int) -> Setting | None:
    """The outermost loop around a line that needs no gradients: its function's qualified name, and its own line.

    Args:
        path: of the file.
        line: where the model is called with gradients on.

    Returns:
        None where each loop there trains as well, or cannot be edited.
    """
    text, loops = _loops(path, line)
    for name, loop in loops:
        called = {getattr(node.func, "attr", None) for node in ast.walk(loop) if isinstance(node, ast.Call)}
        yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(loop))
        if yields or called & {"backward", "grad", "step"}:  # whoever is given a value would get no gradients, too
            continue
        try:
            statements(text, name, loop.lineno, no_grad=True)
        except Refused:
            continue
        return {"function": name, "line": loop.lineno}
    return None


def _loops(path: Path, line: int) -> tuple[str, list[tuple[str, ast.For]]]:
    """A file's text, and the loops of its functions around a line, the outermost first; none in what is no Python."""
    try:
        text = path.read_text(encoding="utf-8")
        body = _parsed(text).body
    except (OSError, UnicodeDecodeError, SyntaxError):
        return "", []
    found = (
        (name, node)
        for name, function in _functions(body)
        for node in ast.walk(function)
        if isinstance(node, ast.For) and node.lineno < line <= (node.end_lineno or 0)
    )
    return text, sorted(found, key=lambda each: each[1].lineno)


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    """A file's tree, which is asked for at each step of planning."""
    return ast.parse(text)


def _functions(body: list[ast.stmt], above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield above + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{above}{node.name}.")


def _loader_of(loop: ast.For) -> ast.expr | None:
    """What a loop goes over, also within ``enumerate(...)`` or a progress bar; None where that is no name."""
    given = loop.iter
    if isinstance(given, ast.Call) and given.args:
        given = given.args[0]
    return given if isinstance(given, (ast.Name, ast.Attribute)) else None


def statements(text: str, name: str, line: int, size: int | None = None, no_grad: bool = False) -> Edits:
    """The loop over ``in_batches_of(loader, size)``, within ``torch.no_grad()``, or both.

    Args:
        text: of the file.
        name: of the function, qualified.
        line: of the loop.

    Raises:
        Refused: the file is another one than that which was read before, or it cannot be edited so.
    """
    tree = _parsed(text)
    loops = [each for each in ast.walk(function_of(tree, name)) if isinstance(each, ast.For) and each.lineno == line]
    loader = _loader_of(loops[0]) if loops else None
    if not loops or (size and loader is None):
        raise Refused(f"no loop over a loader stands on line {line}")
    (loop,) = loops
    lines, last = text.splitlines(), loop.end_lineno or line
    if size and loader is not None:
        row, begin, end = loader.lineno - 1, loader.col_offset, loader.end_col_offset
        known = lines[row].encode()
        given = known[begin:end].decode()
        lines[row] = f"{known[:begin].decode()}in_batches_of({given}, {size}){known[end or begin :].decode()}"
    body = lines[line - 1 : last]
    if no_grad:
        if any(
            isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno for node in ast.walk(loop)
        ):
            raise Refused("a text over several lines stands in the loop")
        outer, inner = (
            lines[row][: len(lines[row]) - len(lines[row].lstrip())] for row in (line - 1, loop.body[0].lineno - 1)
        )
        body = [
            f"with {module_name(tree, 'torch')}.no_grad():",
            *(f"{inner[len(outer) :]}{each}" if each else "" for each in body),
        ]
    return [(line, last, "\n".join(body).lstrip())]


@dataclass(frozen=True)
class EvaluationLoop:
    """``model -> model``, which stays as it is: the loop of the script's evaluation is edited.

    Args:
        file, function, line: of the loop.
        size: samples of a batch; as they are where None.
        no_grad: whether it keeps no gradients.
    """

    file: str
    function: str
    line: int
    size: int | None = None
    no_grad: bool = False

    def __call__(self, model: Any) -> Any:
        for module in [*sys.modules.values()]:
            if str(getattr(module, "__file__", None) or "").endswith(self.file):
                names: list[Any] = [module, *self.function.split(".")]
                found = inspect.unwrap(reduce(lambda held, name: getattr(held, name, None), names))
                if isinstance(found, types.FunctionType):
                    break
        else:
            raise Refused(f"no module has {self.function} of {self.file}")
        if found not in _edited:
            found.__globals__["in_batches_of"] = in_batches_of
            wanted = {"line": self.line, "size": self.size, "no_grad": self.no_grad}
            found.__code__ = rewritten(found, wanted, statements).__code__
            _edited.add(found)  # a model that is wrapped is found again
        return model


_edited: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def in_batches_of(loader: Any, size: int) -> Any:
    """The samples of a loader in the same order and with the same draws, so many a batch: nothing learns from them.

    A loader that makes its batches in its own way, or drops samples, stays as it is.
    """
    from torch.utils.data import DataLoader, IterableDataset

    own = "__iter__" in {name for kind in type(loader).__mro__ for name in vars(kind) if kind not in DataLoader.__mro__}
    if not isinstance(loader, DataLoader) or own or isinstance(loader.dataset, IterableDataset):
        return loader
    if loader.batch_size is None or loader.batch_size >= size:
        return loader
    if loader.drop_last and len(loader) * loader.batch_size < len(loader.sampler):  # type: ignore[arg-type]
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )
