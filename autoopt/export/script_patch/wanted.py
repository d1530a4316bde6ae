"""From one change of a plan to the edits that say it in a script, by what it changes in the setup."""

from __future__ import annotations

from collections.abc import Iterator

from autoopt.export.text import literal
from autoopt.records import Change, Plan
from autoopt.registry import Registry
from autoopt.setup import Compile, Precision, Setup
from autoopt.strategy import Edit

FLAG_LINES = {
    "threads": "{torch}.set_num_threads({value})",
    "interop_threads": "{torch}.set_num_interop_threads({value})",
    "cudnn_benchmark": "{torch}.backends.cudnn.benchmark = {value}",
    "multiprocessing_sharing_strategy": "{torch}.multiprocessing.set_sharing_strategy({value})",
}
_BY_BUILD = {
    "batch": "the batch",
    "cadence": "how often training is interrupted",
    "loss": "the loss",
    "step": "the training step",
    "scheduler": "the schedule",
    "dataset": "the dataset",
    "collate": "what makes batches of samples",
    "sampler": "the order of samples",
    "model": "the model",
    "optimizer": "the optimizer",
}


def edits_of(change: Change, before: Plan, registry: Registry) -> tuple[list[Edit], Precision | None, str]:
    """What one change puts into a script.

    Args:
        change: of the plan.
        before: the changes that stand before it.

    Returns:
        Its edits; the precision that it trains in, where it sets one; and what no edit says, empty where all is said.
    """
    old, new = registry.fold(before), registry.fold(before.with_change(change))
    recipe = registry[change.strategy].recipe(dict(change.setting))
    edits = [*_of_setup(old, new), *recipe.edits]
    precision = new.precision if new.precision.dtype != old.precision.dtype else None
    unsaid = [
        words for part, words in _BY_BUILD.items() if getattr(new, part) != getattr(old, part) and not recipe.edits
    ]
    if new.transfer.prefetch != old.transfer.prefetch and not recipe.edits:
        unsaid.append("batches that are copied ahead")
    if new.compile != old.compile and new.compile is not None and new.compile.regional:
        unsaid.append("which blocks are compiled")
    return edits, precision, ", ".join(unsaid)


def _of_setup(old: Setup, new: Setup) -> Iterator[Edit]:
    """The edits that follow from the setup by itself."""
    loader = {name: value for name, value in new.loader.items() if old.loader.get(name, _NONE) != value}
    if loader:
        yield Edit("loader", arguments=loader)
    if new.transfer.non_blocking and not old.transfer.non_blocking:
        yield Edit("moves", arguments={"non_blocking": True})
    for name, value in new.flags.items():
        if old.flags.get(name, _NONE) == value:
            continue
        if name == "env":
            lines = tuple(f"os.environ[{literal(key)}] = {literal(text)}" for key, text in value.items())
            yield Edit("environment", lines=lines, imports=("os",))
        elif name == "affinity":
            yield Edit("start", lines=(f"os.sched_setaffinity(0, {literal(list(value))})",), imports=("os",))
        elif name in FLAG_LINES:
            line = FLAG_LINES[name].replace("{value}", literal(value))
            yield Edit("start", lines=(line,), imports=("torch",))
    if new.precision.matmul != old.precision.matmul and new.precision.matmul is not None:
        line = f"{{torch}}.set_float32_matmul_precision({literal(new.precision.matmul)})"
        yield Edit("start", lines=(line,), imports=("torch",))
    if new.compile is not None and new.compile != old.compile and not new.compile.regional:
        yield Edit("model", lines=(f"{{model}}.compile({_arguments(new.compile)})",))


def _arguments(compile_: Compile) -> str:
    wanted = {"mode": compile_.mode, "dynamic": compile_.dynamic, "fullgraph": compile_.fullgraph or None}
    return ", ".join(f"{name}={literal(value)}" for name, value in wanted.items() if value is not None)


_NONE = object()
