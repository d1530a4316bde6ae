"""The winning plan as a unified diff of a script, one hunk a change, as a user would write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoopt.export.script import PARTS
from autoopt.export.script_patch.editing import diff_of
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.script_patch.steps import place_pieces, place_precision
from autoopt.export.text import literal
from autoopt.records import Change, PatchedChange, Plan, ScriptPatch, Sites
from autoopt.registry import Registry
from autoopt.script.applicable import READ_BY, marks_steps
from autoopt.setup import Precision, Setup, Wrap
from autoopt.strategy import Edit, Risk

__all__ = ["Placed", "placed"]


@dataclass(frozen=True)
class Placed:
    """A plan put into copies of the user's files; each change is in them as a whole or not at all."""

    placing: Placing
    changes: tuple[PatchedChange, ...]

    @property
    def patch(self) -> ScriptPatch:
        """The diff, and what of the plan no honest edit says."""
        files = sorted(self._files.items(), key=lambda each: (each[1][0] is None, each[0]))  # the added one comes last
        diff = "".join(diff_of(before, after, name) for name, (before, after) in files)
        return ScriptPatch(diff=diff, changes=self.changes, environment=self.placing.environment)

    @property
    def texts(self) -> dict[str, str]:
        """The text of each file that is changed, by its name relative to the command's folder."""
        return {name: after for name, (before, after) in self._files.items() if after != before}

    @property
    def _files(self) -> dict[str, tuple[str | None, str]]:
        """The text of each file as it is, None where it is added, and as it becomes."""
        edited = {name: (edits.source.tree.code, edits.code()) for name, edits in self.placing.files.items()}
        added = {added.file: (None, added.text) for added in filter(None, [self.placing.added])}
        return {**edited, **self.placing.configured, **added}


def placed(
    sites: Sites, plan: Plan, registry: Registry, device: str, sources: dict[str, Source] | None = None
) -> Placed:
    """A plan put into copies of the user's files.

    Args:
        device: type of the device, such as ``cuda``.
        sources: files that were read so far, where several plans are put into the same ones.
    """
    placing, changes = Placing(sites, sources=sources), []
    for index, change in enumerate(plan.changes):
        trial = placing.on_trial()
        try:
            _place(trial, change, Plan(changes=plan.changes[:index]), registry, device)
        except NoHonestEditError as reason:
            how: Literal["patched", "by hand", "plan only"] = "by hand" if reason.by_hand else "plan only"
            reported, placing.environment = str(reason), trial.environment
        else:
            placing, how, reported = trial, "patched", "; ".join(trial.notes)
        place = {"file": trial.touched.file, "line": trial.touched.line} if trial.touched else {}
        described = {**change.model_dump(), "how": how, "reason": reported, **place}
        changes.append(PatchedChange.model_validate(described))
    return Placed(placing, tuple(changes))


def _place(placing: Placing, change: Change, before: Plan, registry: Registry, device: str) -> None:
    edits, precision, unsaid = edits_of(change, before, registry, placing.sites)
    arguments = placing.trainers_arguments(registry[change.strategy].recipe(dict(change.setting)))
    if arguments:
        placing.place(Edit("trainer", arguments=arguments))
        return
    if unsaid:
        raise NoHonestEditError(f"what it changes is not said by any one line of a script: {unsaid}")
    variables = {name: text for edit in edits if edit.at == "environment" for name, text in edit.arguments.items()}
    if variables:
        words = " ".join(f"{name}={text}" for name, text in variables.items())
        placing.environment = placing.environment | variables
        raise NoHonestEditError(f"it is set where the script is started: {words}", by_hand=True)
    for edit in edits:
        if edit.at == "batch":
            place_pieces(placing, edit)
        else:
            placing.place(edit)
    if precision is not None:
        place_precision(placing, precision, device)


HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_NONE = object()
_WRAPPED = ("dataset", "collate")
"""Parts of a setup whose ``Wrap`` a patch says as the call that it is; the model's stand below it."""
_Called = Literal["evaluation", "loader", "wrapper"]
FLAG_LINES = {
    "threads": "{torch}.set_num_threads({value})",
    "interop_threads": "{torch}.set_num_interop_threads({value})",
    "cudnn_benchmark": "{torch}.backends.cudnn.benchmark = {value}",
    "multiprocessing_sharing_strategy": "{torch}.multiprocessing.set_sharing_strategy({value})",
    "matmul": "{torch}.set_float32_matmul_precision({value})",
}
_MARK = "{torch}.compiler.cudagraph_mark_step_begin()"


def edits_of(
    change: Change, before: Plan, registry: Registry, sites: Sites
) -> tuple[list[Edit], Precision | None, str]:
    """The edits by which one change goes into a script.

    Args:
        before: the changes that stand before it.
        sites: of the script, with the values that it has now.

    Returns:
        Its edits; the precision that it trains in, where it sets one; and what no edit says, empty where all is said.
    """
    old, new = registry.fold(before), registry.fold(before.with_change(change))
    strategy = registry[change.strategy]
    own = strategy.recipe(dict(change.setting)).edits
    below = () if own else _of_model(old, new, strategy.risk)
    edits = [*_of_setup(old, new, sites), *own, *below]
    in_class = any(edit.at == "function" for edit in own) and bool(_added(old, new, "dataset"))
    if in_class and new.loader.get("num_workers") == 0:  # evaluations read the same class
        edits.append(Edit("dataset", arguments={"num_workers": 0}))
    if marks_steps(new, sites) and not marks_steps(old, sites):
        edits += [Edit("model", lines=(_MARK,)), Edit("step", lines=(_MARK,), imports=("torch",))]
    precision = new.precision if new.precision.dtype != old.precision.dtype else None
    unsaid = [
        f"the {word}"
        for part, word in {**PARTS, "cadence": "cadence of evaluations"}.items()
        if not own
        and not (part == "model" and below)
        and not all(part in _WRAPPED and isinstance(each, Wrap) for each in _added(old, new, part))
    ]
    if new.transfer.prefetch != old.transfer.prefetch and not own:
        unsaid.append("batches that are copied ahead")
    if new.compile != old.compile and new.compile is not None and new.compile.regional and not own:
        unsaid.append("which blocks are compiled")
    if new.batch.warmup_steps != old.batch.warmup_steps:
        unsaid.append("warm-up")
    scaled = new.batch.learning_rate_factor != old.batch.learning_rate_factor
    if scaled and not any("lr" in edit.arguments for edit in edits):
        unsaid.append("the learning rate, which was no number where the optimizer is made")
    return edits, precision, ", ".join(unsaid)


def _added(old: Setup, new: Setup, part: str) -> tuple[object, ...]:
    """What a setup has in one of its parts that the one before it did not have."""
    before, after = getattr(old, part), getattr(new, part)
    if before == after:
        return ()
    return tuple(after[len(before) :]) if isinstance(after, tuple) else (after,)


def _wraps(
    at: Literal["dataset", "collate"], only: Literal["training_dataset", "training_collate"], old: Setup, new: Setup
) -> Iterator[Edit]:
    """What is put around the dataset or the collate function; ``only``: of the training alone."""
    for each in _added(old, new, at):
        if isinstance(each, Wrap):
            # what is wrapped alike for evaluation is read alike
            arguments = {name: new.loader[name] for name in READ_BY if at == "dataset" and name in new.loader}
            # of a dataset: samples that only its batches complete
            alone = bool(_added(old, new, "collate")) if at == "dataset" else not each.evaluation
            yield Edit(only if alone else at, (_wrapped(each, at),), parts=(each.name,), arguments=arguments)


def _of_model(old: Setup, new: Setup, risk: Risk) -> tuple[Edit, ...]:
    """Lines below the model that change it, of a change whose recipe has no edits of its own.

    Another model, with what it may need besides, stays with the plan.
    """
    added = _added(old, new, "model")
    wraps = [each for each in added if isinstance(each, Wrap)]
    if risk is Risk.MODEL or len(wraps) < len(added):
        return ()
    return tuple(Edit("model", (_wrapped(each, "model"),), parts=(each.name,)) for each in wraps)


def _wrapped(wrap: Wrap, what: str) -> str:
    """The call that a wrap is, around ``{what}``."""
    options = "".join(f", {name}={literal(value)}" for name, value in wrap.options)
    return f"{wrap.name.rpartition(':')[2]}({{{what}}}{options})"


def _of_setup(old: Setup, new: Setup, sites: Sites) -> Iterator[Edit]:
    """The edits that follow from the setup by itself."""
    calls: dict[_Called, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "evaluation": (old.evaluation, new.evaluation),
        "loader": (old.loader, new.loader),
        "wrapper": (old.distributed.arguments, new.distributed.arguments),
    }
    for at, (before, after) in calls.items():
        arguments = {name: value for name, value in after.items() if before.get(name, _NONE) != value}
        wrap = arguments.pop("dataset", None)
        if wrap is not None:
            yield Edit("evaluation_dataset", (_wrapped(wrap, "dataset"),), parts=(wrap.name,))
        if arguments:
            yield Edit(at, arguments=arguments)
    yield from _wraps("dataset", "training_dataset", old, new)
    yield from _wraps("collate", "training_collate", old, new)
    if new.transfer.non_blocking and not old.transfer.non_blocking:
        yield Edit("moves", arguments={"non_blocking": True})
    if new.distributed.compression == "bfloat16" and old.distributed.compression is None:
        line = f"{{model}}.register_comm_hook(None, {HOOKS}.bf16_compress_hook)"  # gradients in fewer bytes
        yield Edit("model", lines=(line,), imports=(HOOKS,))
    switches = {**old.flags, "matmul": old.precision.matmul}
    for name, value in {**new.flags, "matmul": new.precision.matmul}.items():
        if value is None or switches.get(name, _NONE) == value:
            continue
        if name == "env":
            yield Edit("environment", arguments=dict(value))
        elif name == "attention_off":
            off = tuple(f"{{torch}}.backends.cuda.enable_{each}_sdp(False)" for each in value)
            yield Edit("start", lines=off, imports=("torch",))
        elif name == "affinity":
            yield Edit("start", lines=(f"os.sched_setaffinity(0, {literal(list(value))})",), imports=("os",))
        elif name == "keep_freed_memory":
            yield Edit("start", lines=("keep_freed_memory()",), parts=("autoopt.benchmark.flags:keep_freed_memory",))
        elif name in FLAG_LINES:
            line = FLAG_LINES[name].replace("{value}", literal(value))
            yield Edit("start", lines=(line,), imports=("torch",))
    if new.compile is not None and new.compile != old.compile and not new.compile.regional:
        words = [f"{name}={literal(value)}" for name, value in new.compile.arguments.items()]
        if any(site.options.get("torchs") for site in sites.of("model")):  # one of torch's does not compile itself
            line = f"compile_in_place({', '.join(['{model}', *words])})"
            yield Edit("model", lines=(line,), parts=("autoopt.benchmark.compiling:compile_in_place",))
        else:
            yield Edit("model", lines=(f"{{model}}.compile({', '.join(words)})",))
    batch, factor = new.batch, new.batch.learning_rate_factor / old.batch.learning_rate_factor
    if batch.size not in (None, old.batch.size) and batch.accumulation == old.batch.accumulation:
        yield Edit("loader", arguments={"batch_size": batch.size})
    rates = [site.options.get("lr") for site in sites.of("optimizer")]
    if factor != 1.0 and rates and isinstance(rates[0], int | float):
        yield Edit("optimizer", arguments={"lr": float(f"{rates[0] * factor:.6g}")})
