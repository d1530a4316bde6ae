"""The winning plan as a plain PyTorch script around the user's ``build()``, from the setup that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autoopt.export.inline import Inliner, NotExportable
from autoopt.export.text import GIVEN, Code, commented, literal
from autoopt.loading.importing import UserBuild, dotted, is_path
from autoopt.records import Change, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import OURS, Registry
from autoopt.setup import Setup

_PLAIN = Setup()


class Draft:
    """Code in the making. ``notes``: what could not be exported, a sentence each."""

    def __init__(self, plan: Plan, registry: Registry, base: Setup = _PLAIN) -> None:
        homes = {type(registry[change.strategy]).__module__ for change in plan.changes}
        self.setup, self.inliner = registry.fold(plan, base), Inliner((*OURS, *homes))
        self.notes: list[str] = []

    def printed(
        self, wanted: Mapping[str, tuple[str, ...]], facts: WorkloadFacts | None = None, build: str = "build"
    ) -> tuple[list[str], list[str]]:
        """Definitions of printed code, the wanted names by module, with all that they need, and lines of imports."""
        for module, names in wanted.items():
            self.inliner.reserve(*names, module=module)
        self.inliner.known = known_of(self, facts, build)
        for module, names in wanted.items():
            for name in names:
                self.inliner.want(module, name)
        definitions = self.inliner.definitions()  # first: their annotations may need an import
        return definitions, self.inliner.import_lines()

    def expression(self, item: Any, what: str) -> list[Code]:
        """An object as Python; of one that cannot be printed a note, and nothing."""
        try:
            return [Code(self.inliner.expression(item))]
        except NotExportable as problem:
            note = f"{what} is missing here: {problem}"
            self.notes += [note] if note not in self.notes else []
            return []


_FLAGS = ("threads", "interop_threads", "cudnn_benchmark", "keep_freed_memory", "multiprocessing_sharing_strategy")
_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_OF_VALIDATION = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")


def known_of(draft: Draft, facts: WorkloadFacts | None = None, build: str = "build") -> dict[str, Any]:
    """The names that printed code may depend on (``printed.plan``), and those of the training step.

    None stands for what is as the user has it, and for what is not needed.

    Args:
        draft: its inliner gets the definitions of the plan's transforms.
        facts: of the workload; None: code for a Trainer, which runs the training itself.
    """
    flags = draft.setup.flags
    affinity, off = flags.get("affinity"), flags.get("attention_off", ())
    switches: dict[str, Any] = {name: flags.get(name) for name in _FLAGS}  # of the process
    switches["affinity"] = None if affinity is None else Code(f"{{{', '.join(map(str, sorted(affinity)))}}}")
    switches["matmul"] = draft.setup.precision.matmul
    plan = {"build": Code(build), **switches, **_changes(draft, facts)}
    plan["attention_switches"] = [Code(f"torch.backends.cuda.enable_{name}_sdp") for name in off]
    plan["sets_switches"] = bool(off) or any(value is not None for value in switches.values())
    known = {} if facts is None else _run(draft.setup, plan, facts)
    unneeded = {
        "self.configured": not plan["configures"],
        "self.on_train_start": not plan["changes_training_loader"],
        "names": not (plan["rebuilds"] or plan["optimizer"]),
        "batch_size": plan["batch_size"] is None,  # an argument that says what is so without it
    }
    known |= {name: None for name, is_unneeded in unneeded.items() if is_unneeded}
    known |= {} if plan["non_blocking"] else {"non_blocking": False}
    return known | {f"plan.{name}": value for name, value in plan.items()}


PARTS = {
    "dataset": "dataset",
    "collate": "collate function",
    "sampler": "order of samples",
    "loss": "loss",
    "model": "model",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "step": "training step",
}
"""Parts of a setup that transforms change, in words."""


def _changes(draft: Draft, facts: WorkloadFacts | None) -> dict[str, Any]:
    """What the plan changes, whoever runs the training; the tasks of a Trainer's callback follow from it."""
    setup, compile_, batch = draft.setup, draft.setup.compile, draft.setup.batch
    options = {} if compile_ is None else compile_.arguments
    plan: dict[str, Any] = {
        **vars(setup.transfer),
        **vars(batch),
        **vars(setup.cadence),
        "loader_options": loader_options(draft, facts),
        "valid_options": loader_options(draft, facts, validation=True),
        "valid_batch_size": setup.evaluation.get("batch_size"),
        "starts_workers": "worker_init_fn" in setup.loader,
        "batch_size": batch.size,
        "scales_rate": (batch.learning_rate_factor, batch.warmup_steps) != (1.0, 0),
        "compiles": compile_ is not None,
        "regional": compile_ is not None and compile_.regional,
        "compile_options": {name: Code(literal(value)) for name, value in options.items()},
        "marks_steps": compile_ is not None and compile_.replays_graphs,
        "rebuilds": bool(setup.optimizer or setup.model),
        "changes_model": bool(setup.model) or compile_ is not None,
    }
    for part, word in PARTS.items():
        made = (draft.expression(item, f"a change of the {word}") for item in getattr(setup, part))
        plan[part] = [code for each in made for code in each]
    wrap = setup.evaluation.get("dataset")
    plan["valid_dataset"] = [] if wrap is None else draft.expression(wrap, "a change of the validation's dataset")
    of_loader = ("dataset", "loader_options", "batch_size", "collate", "sampler")
    optimizer = bool(plan["optimizer"] or plan["scheduler"] or plan["scales_rate"])
    return plan | {
        "changes_training_loader": any(plan[name] for name in of_loader),
        "changes_validation_loader": bool(plan["valid_options"] or plan["valid_dataset"]),
        "configures": plan["changes_model"] or optimizer,
        "configures_optimizer": optimizer,
    }


def _run(setup: Setup, plan: dict[str, Any], facts: WorkloadFacts) -> dict[str, Any]:
    """Of a training of the script's own: to ``plan`` what it depends on besides; the names of its steps.

    Those of ``benchmark.training_step``: no clock, no checks, and no more than the plan's steps need.
    """
    loader, batch, dtype = facts.loader, setup.batch, setup.precision.dtype
    moves_batch = batch.size is not None or batch.accumulation is not None
    has_scheduler = bool(setup.scheduler) or facts.optimizer.has_scheduler
    whole_schedule = plan["scales_rate"] or (has_scheduler and moves_batch)  # more than ``scheduler.step()``
    has_scheduler = has_scheduler or whole_schedule
    plan |= {
        "adapted": bool(facts.adapter),
        "own_loader": loader.own_loader,
        # the random numbers of a sampler of the user's own have to be shielded, as in a trial
        "odd_loader": loader.custom_sampler or loader.custom_batch_sampler,
        "map_style": facts.dataset.map_style,
        "same_samples": facts.dataset.deterministic and facts.dataset.map_style,
        "known_length": facts.steps_per_epoch is not None,
        "moves_batch": moves_batch,
        "criterion": not facts.loss_is_closure,
        "dtype": Code(f"torch.{dtype}") if dtype else None,
        "scales_loss": setup.precision.loss_scaling,
        "clips": facts.clip_grad_norm is not None,
        "has_scheduler": has_scheduler,
        "whole_schedule": whole_schedule,
        "has_evaluate": facts.has_evaluate,
    }
    scales, clips = plan["scales_loss"], plan["clips"]
    plain, single = not (scales or clips), (batch.accumulation or facts.accumulation) == 1
    found: dict[str, Any] = dict.fromkeys(("clock", "self.clock", "self.clock.mark", "self._check", "self._latest"))
    found |= {
        "fine": False,
        "self._unchecked": False,
        "single": single,
        "self.forward": Code("self._under_autocast" if dtype else "self.loss"),
        "self.backward": Code("self._scaled" if scales else "torch.Tensor.backward"),
        "self._plain_update": plain,
    }
    for name, is_used in {"scaler": scales, "autocast": dtype, "clip": clips}.items():
        found[name] = found[f"self.{name}"] = GIVEN if is_used else None
    if not plan["marks_steps"]:
        found |= {"begin": None, "self.begin": None}
    unused = {"_accumulate": single, "_under_autocast": not dtype, "_scaled": not scales, "update": plain}
    unused |= {"make_scheduler": not has_scheduler, **dict.fromkeys(("evaluated", "enough"), not facts.has_evaluate)}
    return found | {f"self.{name}": None for name, is_unused in unused.items() if is_unused}


def loader_options(draft: Draft, facts: WorkloadFacts | None, *, validation: bool = False) -> dict[str, Code]:
    """The plan's DataLoader options as Python, without those that torch refuses together."""
    options: dict[str, Any] = dict(draft.setup.loader)
    if validation:
        options = {name: value for name, value in options.items() if name in _OF_VALIDATION}
        options |= {name: value for name, value in draft.setup.evaluation.items() if name != "dataset"}
    workers = options.get("num_workers")
    if workers is None and facts is not None:
        workers = facts.loader.num_workers
    if not workers:
        options = {name: value for name, value in options.items() if name not in _WORKER_OPTIONS}
    made = {name: draft.expression(value, f"the DataLoader option {name}") for name, value in options.items()}
    return {name: found[0] for name, found in made.items() if found}


def script(workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts) -> str:
    """The text of optimized_train.py, which trains what a trial of the plan trains, step for step.

    What of the plan it lacks stands in its comments.

    Args:
        facts: of the workload; what they tell is not asked again in the script.
    """
    draft = Draft(plan, registry, _PLAIN.with_precision(dtype=facts.precision) if facts.precision else _PLAIN)
    if plan.processes > 1:
        how = f"autoopt train {workload_spec} --plan plan.json starts them"
        draft.notes.append(f"training in {plan.processes} processes: {how}")
    module, _, build = workload_spec.rpartition(":")
    first, *rest = build.split(".")
    before = ["sys.path.insert(0, os.getcwd())  # run this where you run your own training"]
    if is_path(module):
        folder, module = dotted(Path(module))
        if folder != Path():
            before.append(f"sys.path.insert(0, {literal(folder.as_posix())})")
    imported = f"from {module} import {first}"
    if any(first in names for names in _PRINTED.values()):
        imported, build = f"{imported} as your_{first}", ".".join([f"your_{first}", *rest])
    draft.inliner.reserve(build.split(".")[0])
    draft.inliner.builds[UserBuild(workload_spec)] = build
    draft.inliner.imports |= {("os", None, "os"), ("sys", None, "sys")}
    copied, lines = draft.printed(_PRINTED, facts, build)
    head = [f'"""Trains {plain(workload_spec)} with the plan that autoopt measured, in plain PyTorch.', ""]
    listing = ["The plan:", *listed(plan.changes)]
    head += listing if plan.changes else ["The plan is empty: this is your own training, unchanged."]
    head += ["", "Run it where you run your own training; --help shows what it takes.", '"""']
    head += [line for note in draft.notes for line in ("", *commented(f"Not in this script: {note}"))]
    blocks = ["\n".join(line.rstrip() for line in head), "from __future__ import annotations"]
    environment = draft.setup.flags.get("env", {})
    if environment:
        reported = [f"os.environ[{literal(k)}] = {literal(str(v))}" for k, v in sorted(environment.items())]
        blocks += ["import os", "\n".join([*reported, "# set before torch is imported: it reads them only then"])]
        lines = [line for line in lines if line != "import os"]
    blocks += ["\n".join(lines), "\n".join(before), f"{imported}  # noqa: E402"]
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*copied, _ENTRY]) + "\n"


_PRINTED = {
    "autoopt.export.printed.data": ("groups",),
    "autoopt.export.printed.run": ("Run", "train", "arguments", "main"),
}
"""Names that a script is asked for: from outside, and by who runs it."""
_ENTRY = 'if __name__ == "__main__":\n    main()'


def listed(changes: Iterable[Change]) -> list[str]:
    """Changes with their settings, a line of a docstring each."""
    each = [(c.strategy, ", ".join(f"{key}={value}" for key, value in c.setting.items())) for c in changes]
    return [f"  {name}{f'  ({plain(setting)})' if setting else ''}" for name, setting in each]


def plain(text: str) -> str:
    """Text that ends no docstring."""
    return text.replace("\\", "/").replace('"""', "'''")
