"""The winning plan as a plain PyTorch script around the user's ``build()``, from the setup that was measured."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoopt.export.inline import Inliner, NotExportable
from autoopt.export.text import GIVEN, Code, commented, literal
from autoopt.loading.importing import UserBuild, dotted
from autoopt.records import Change, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import OURS, Registry
from autoopt.setup import Setup


@dataclass
class Draft:
    """One script in the making.

    ``notes``: what could not be exported, a sentence each.
    """

    spec: str
    plan: Plan
    setup: Setup
    inliner: Inliner = field(default_factory=Inliner)
    notes: list[str] = field(default_factory=list)

    def use(self, module: str, *names: str) -> None:
        """Imports a module, or names from it."""
        if not names:
            self.inliner.imports.add((module, None, module))
        for name in names:
            self.inliner.imports.add((module, name, name))

    def expressions(self, items: Iterable[Any], what: str) -> list[Code]:
        """Each transform as Python; one that cannot be printed is noted and left out."""
        made = []
        for item in items:
            try:
                made.append(Code(self.inliner.expression(item)))
            except NotExportable as problem:
                self.notes.append(f"a change of the {what} is missing here: {problem}")
        return made


def user_import(spec: str, taken: Collection[str] = ()) -> tuple[list[str], list[str], str]:
    """How the script gets at the user's ``build``.

    Args:
        spec: the import string.
        taken: names that the script has of its own.

    Returns:
        Lines before the import, the import's own lines, and the name to call.
    """
    where, _, attribute = spec.rpartition(":")
    first, *rest = attribute.split(".")
    before = ["sys.path.insert(0, os.getcwd())  # run this where you run your own training"]
    module = where
    if where.endswith(".py") or "/" in where or os.sep in where:
        folder, module = dotted(Path(where))
        if folder != Path():
            before.append(f"sys.path.insert(0, {literal(folder.as_posix())})")
    name = f"your_{first}" if first in taken else first
    renamed = f" as {name}" if name != first else ""
    return before, [f"from {module} import {first}{renamed}"], ".".join([name, *rest])


_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_OF_VALIDATION = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")


def known_of(draft: Draft, facts: WorkloadFacts | None = None, build: str = "build") -> dict[str, Any]:
    """The names that printed code may depend on (``printed.plan``), and those of the training step.

    None stands for what is as the user has it, and for what is not needed.

    Args:
        draft: its inliner gets the definitions of the plan's transforms.
        facts: of the workload; None: code for a Trainer, which runs the training itself.
        build: what gives the user's workload.
    """
    plan = {"build": Code(build), **_switches(draft), **_changes(draft, facts)}
    own = plan | _run(draft, facts) if facts is not None else plan
    own |= _trainer(own)
    known = {f"plan.{name}": value for name, value in own.items()}
    known |= {"self.configured": None} if not own["configures"] else {}
    known |= {"self.on_train_start": None} if not own["changes_training_loader"] else {}
    known |= {"names": None} if not (own["rebuilds"] or own["optimizer"]) else {}
    known |= {"batch_size": None} if own["batch_size"] is None else {}  # arguments that say what is so without them
    known |= {"non_blocking": False} if not own["non_blocking"] else {}
    return {**known, **_step(own, facts)} if facts is not None else known


def _switches(draft: Draft) -> dict[str, Any]:
    flags = draft.setup.flags
    affinity = flags.get("affinity")
    found: dict[str, Any] = {
        "affinity": None if affinity is None else Code(f"{{{', '.join(map(str, sorted(affinity)))}}}"),
        "threads": flags.get("threads"),
        "interop_threads": flags.get("interop_threads"),
        "cudnn_benchmark": flags.get("cudnn_benchmark"),
        "attention_off": flags.get("attention_off"),
        "keeps_freed_memory": flags.get("keep_freed_memory"),
        "sharing_strategy": flags.get("multiprocessing_sharing_strategy"),
        "matmul": draft.setup.precision.matmul,
    }
    return {"sets_switches": any(value is not None for value in found.values()), **found}


def _changes(draft: Draft, facts: WorkloadFacts | None) -> dict[str, Any]:
    """What the plan changes, whoever runs the training."""
    setup, compile_ = draft.setup, draft.setup.compile
    options: dict[str, Any] = {}
    if compile_ is not None:
        options = {"mode": compile_.mode, "dynamic": compile_.dynamic, "fullgraph": compile_.fullgraph or None}
    rate = (setup.batch.learning_rate_factor, setup.batch.warmup_steps)
    return {
        "loader_options": loader_options(draft, facts),
        "valid_options": loader_options(draft, facts, validation=True),
        "starts_workers": "worker_init_fn" in setup.loader,
        "batch_size": setup.batch.size,
        "learning_rate_factor": rate[0],
        "warmup_steps": rate[1],
        "scales_rate": rate != (1.0, 0),
        "non_blocking": setup.transfer.non_blocking,
        "prefetch": setup.transfer.prefetch,
        "dataset": draft.expressions(setup.dataset, "dataset"),
        "collate": draft.expressions(setup.collate, "collate function"),
        "sampler": draft.expressions(setup.sampler, "order of samples"),
        "loss": draft.expressions(setup.loss, "loss"),
        "model": draft.expressions(setup.model, "model"),
        "optimizer": draft.expressions(setup.optimizer, "optimizer"),
        "scheduler": draft.expressions(setup.scheduler, "scheduler"),
        "step": draft.expressions(setup.step, "step"),
        "compiles": compile_ is not None,
        "regional": compile_ is not None and compile_.regional,
        "compile_options": {name: Code(literal(value)) for name, value in options.items() if value is not None},
        "marks_steps": compile_ is not None and compile_.replays_graphs,
        "rebuilds": bool(setup.optimizer or setup.model),
        "changes_model": bool(setup.model) or compile_ is not None,
    }


def _run(draft: Draft, facts: WorkloadFacts) -> dict[str, Any]:
    """What a training of the script's own depends on besides: the workload, and how often it is interrupted."""
    setup, loader, batch = draft.setup, facts.loader, draft.setup.batch
    moves_batch = batch.size is not None or batch.accumulation is not None
    has_scheduler = bool(setup.scheduler) or facts.optimizer.has_scheduler
    scales_rate = (batch.learning_rate_factor, batch.warmup_steps) != (1.0, 0)
    whole_schedule = scales_rate or (has_scheduler and moves_batch)  # more than ``scheduler.step()``
    return {
        "adapted": bool(facts.adapter),
        "own_loader": loader.own_loader,
        # the random numbers of a sampler of the user's own have to be shielded, as in a trial
        "odd_loader": loader.custom_sampler or loader.custom_batch_sampler,
        "map_style": facts.dataset.map_style,
        "same_samples": facts.dataset.deterministic and facts.dataset.map_style,
        "known_length": facts.steps_per_epoch is not None,
        "moves_batch": moves_batch,
        "accumulation": batch.accumulation,
        "criterion": not facts.loss_is_closure,
        "dtype": Code(f"torch.{setup.precision.dtype}") if setup.precision.dtype else None,
        "scales_loss": setup.precision.loss_scaling,
        "clips": facts.clip_grad_norm is not None,
        "has_scheduler": has_scheduler or whole_schedule,
        "whole_schedule": whole_schedule,
        "has_evaluate": facts.has_evaluate,
        "evaluate_every": setup.cadence.evaluate_every,
        "checkpoint_every": setup.cadence.checkpoint_every,
    }


def _trainer(plan: dict[str, Any]) -> dict[str, Any]:
    """Tasks of a Trainer's callback."""
    optimizer = bool(plan["optimizer"] or plan["scheduler"] or plan["scales_rate"])
    return {
        "changes_training_loader": any(
            plan[name] for name in ("dataset", "loader_options", "batch_size", "collate", "sampler")
        ),
        "changes_validation_loader": bool(plan["valid_options"]),
        "configures": plan["changes_model"] or optimizer,
        "configures_optimizer": optimizer,
    }


def _step(plan: dict[str, Any], facts: WorkloadFacts) -> dict[str, Any]:
    """Names of ``benchmark.training_step``: no clock, no checks, and no more than the plan's steps need."""
    scaler = GIVEN if plan["scales_loss"] else None
    autocast = GIVEN if plan["dtype"] is not None else None
    clip = GIVEN if plan["clips"] else None
    plain, single = scaler is None and clip is None, (plan["accumulation"] or facts.accumulation) == 1
    found: dict[str, Any] = dict.fromkeys(("clock", "self.clock", "self.clock.mark", "self._check", "self._latest"))
    found |= {
        "fine": False,
        "self._unchecked": False,
        "single": single,
        "self.forward": Code("self.loss" if autocast is None else "self._under_autocast"),
        "self.backward": Code("torch.Tensor.backward" if scaler is None else "self._scaled"),
        "self._plain_update": plain,
    }
    for name, value in {"scaler": scaler, "autocast": autocast, "clip": clip}.items():
        found |= {name: value, f"self.{name}": value}
    if not plan["marks_steps"]:
        found |= {"begin": None, "self.begin": None}
    unused = {"_accumulate": single, "_under_autocast": autocast is None, "_scaled": scaler is None, "update": plain}
    unused |= {"make_scheduler": not plan["has_scheduler"]}
    unused |= {"evaluated": not plan["has_evaluate"], "enough": not plan["has_evaluate"]}
    return found | {f"self.{name}": None for name, is_unused in unused.items() if is_unused}


def loader_options(draft: Draft, facts: WorkloadFacts | None, *, validation: bool = False) -> dict[str, Code]:
    """The plan's DataLoader options as Python, without those that torch refuses together."""
    options: dict[str, Any] = dict(draft.setup.loader)
    if validation:
        options = {name: value for name, value in options.items() if name in _OF_VALIDATION}
        options |= draft.setup.evaluation
    workers = options.get("num_workers")
    if workers is None and facts is not None:
        workers = facts.loader.num_workers
    if not workers:
        options = {name: value for name, value in options.items() if name not in _WORKER_OPTIONS}
    made = {}
    for name, value in options.items():
        try:
            made[name] = Code(draft.inliner.expression(value))
        except NotExportable as problem:
            note = f"the DataLoader option {name} is missing here: {problem}"
            draft.notes += [note] if note not in draft.notes else []
    return made


def script(workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts) -> str:
    """The text of optimized_train.py, which trains what a trial of the plan trains, step for step.

    What of the plan it lacks stands in its comments.

    Args:
        workload_spec: the import string of the user's ``build``.
        plan: what is printed.
        registry: folds the plan.
        facts: of the workload; what they tell is not asked again in the script.
    """
    base = Setup().with_precision(dtype=facts.precision) if facts.precision else Setup()
    processes = plan.processes
    homes = {type(registry[change.strategy]).__module__ for change in plan.changes}
    draft = Draft(workload_spec, plan, registry.fold(plan, base), Inliner((*OURS, *homes)))
    if processes > 1:
        draft.notes.append(
            f"training in {processes} processes: autoopt train {workload_spec} --plan plan.json starts them"
        )
    before, imported, build = user_import(workload_spec, _NAMES)
    inliner = draft.inliner
    inliner.reserve(build.split(".")[0])
    inliner.builds[UserBuild(workload_spec)] = build
    for module, names in _PRINTED.items():
        inliner.reserve(*names, module=module)
    inliner.known = known_of(draft, facts, build)
    for module, names in _PRINTED.items():
        for name in names:
            inliner.want(module, name)
    return _assembled(draft, before, imported)


_PRINTED = {
    "autoopt.export.printed.data": ("groups",),
    "autoopt.export.printed.run": ("Run", "train", "arguments", "main"),
}
"""Names that a script is asked for: from outside, and by who runs it."""
_NAMES = tuple(name for names in _PRINTED.values() for name in names)
_ENTRY = 'if __name__ == "__main__":\n    main()'


def _assembled(draft: Draft, before: list[str], imported: list[str]) -> str:
    setup = draft.setup
    head = [f'"""Trains {plain(draft.spec)} with the plan that autoopt measured, in plain PyTorch.', ""]
    listing = ["The plan:", *listed(draft.plan.changes)]
    head += listing if draft.plan.changes else ["The plan is empty: this is your own training, unchanged."]
    head += ["", "Run it where you run your own training; --help shows what it takes.", '"""']
    head += [line for note in draft.notes for line in ("", *commented(f"Not in this script: {note}"))]
    blocks = ["\n".join(line.rstrip() for line in head), "from __future__ import annotations"]
    environment = dict(setup.flags.get("env", {}))
    draft.use("os")
    draft.use("sys")
    copied = draft.inliner.definitions()  # first: their annotations may need an import
    lines = draft.inliner.import_lines()
    if environment:
        reported = [f"os.environ[{literal(k)}] = {literal(str(v))}" for k, v in sorted(environment.items())]
        blocks += ["import os", "\n".join([*reported, "# set before torch is imported: it reads them only then"])]
        lines = [line for line in lines if line != "import os"]
    blocks.append("\n".join(lines))
    blocks.append("\n".join(before))
    blocks.append("\n".join(f"{line}  # noqa: E402" for line in imported))
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*copied, _ENTRY]) + "\n"


def listed(changes: Iterable[Change]) -> list[str]:
    """Changes with their settings, a line of a docstring each."""
    each = [(c.strategy, ", ".join(f"{key}={value}" for key, value in c.setting.items())) for c in changes]
    return [f"  {name}{f'  ({plain(setting)})' if setting else ''}" for name, setting in each]


def plain(text: str) -> str:
    """Text that ends no docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
