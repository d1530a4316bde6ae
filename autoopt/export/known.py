"""Names that folding fills in where a plan decides printed code, from the setup and the facts."""

from __future__ import annotations

from typing import Any

from autoopt.export.draft import Draft
from autoopt.export.fold import GIVEN, Code
from autoopt.export.inline import NotExportable
from autoopt.export.text import literal

_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_OF_VALIDATION = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")


def known_of(draft: Draft, build: str = "build") -> dict[str, Any]:
    """The names that printed code may depend on (``printed.plan``), and those of the training step.

    Args:
        draft: its inliner gets the definitions of the plan's transforms.
        build: what gives the user's workload.
    """
    plan = {"build": Code(build), "adapted": bool(draft.adapted), **_switches(draft), **_data(draft), **_run(draft)}
    plan |= _trainer(plan)
    return {**{f"plan.{name}": value for name, value in plan.items()}, **_step(draft, plan)}


def _switches(draft: Draft) -> dict[str, Any]:
    flags = draft.setup.flags
    affinity = flags.get("affinity")
    found: dict[str, Any] = {
        "affinity": None if affinity is None else Code(f"{{{', '.join(map(str, sorted(affinity)))}}}"),
        "threads": flags.get("threads"),
        "interop_threads": flags.get("interop_threads"),
        "cudnn_benchmark": flags.get("cudnn_benchmark"),
        "keeps_freed_memory": flags.get("keep_freed_memory"),
        "sharing_strategy": flags.get("multiprocessing_sharing_strategy"),
        "matmul": draft.setup.precision.matmul,
    }
    return {"sets_switches": any(value is not None for value in found.values()), **found}


def _data(draft: Draft) -> dict[str, Any]:
    setup = draft.setup
    return {
        "own_loader": draft.own_loader,
        "odd_loader": draft.odd_loader,
        "map_style": draft.map_style,
        "known_length": draft.known_length,
        "loader_options": loader_options(draft),
        "valid_options": loader_options(draft, validation=True),
        "starts_workers": "worker_init_fn" in setup.loader,
        "batch_size": setup.batch.size,
        "moves_batch": draft.moves_batch,
        "non_blocking": setup.transfer.non_blocking,
        "prefetch": setup.transfer.prefetch,
        "dataset": draft.expressions(setup.dataset, "dataset"),
        "collate": draft.expressions(setup.collate, "collate function"),
        "sampler": draft.expressions(setup.sampler, "order of samples"),
    }


def _run(draft: Draft) -> dict[str, Any]:
    setup, known = draft.setup, draft.facts is not None
    compile_ = setup.compile
    options = {} if compile_ is None else _compile_options(compile_)
    return {
        "accumulation": setup.batch.accumulation,
        "learning_rate_factor": setup.batch.learning_rate_factor,
        "warmup_steps": setup.batch.warmup_steps,
        "loss": draft.expressions(setup.loss, "loss"),
        "model": draft.expressions(setup.model, "model"),
        "optimizer": draft.expressions(setup.optimizer, "optimizer"),
        "scheduler": draft.expressions(setup.scheduler, "scheduler"),
        "step": draft.expressions(setup.step, "step"),
        "criterion": draft.criterion,
        "dtype": Code(f"torch.{draft.dtype}") if draft.dtype else None,
        "scales_loss": setup.precision.loss_scaling,
        "clips": draft.clips,
        "compiles": compile_ is not None,
        "regional": compile_ is not None and compile_.regional,
        "compile_options": options,
        "marks_steps": compile_ is not None and compile_.replays_graphs,
        "rebuilds": bool(setup.optimizer or setup.model),
        "changes_model": bool(setup.model) or compile_ is not None,
        "scales_rate": draft.scales_rate,
        "has_scheduler": draft.has_scheduler or draft.whole_schedule,
        "whole_schedule": draft.whole_schedule,
        "scheduler_known": known or bool(setup.scheduler),
        "has_evaluate": draft.has_evaluate,
        "evaluate_known": known,
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


def _compile_options(compile_: Any) -> dict[str, Code]:
    options = {"mode": compile_.mode, "dynamic": compile_.dynamic, "fullgraph": compile_.fullgraph or None}
    return {name: Code(literal(value)) for name, value in options.items() if value is not None}


def _step(draft: Draft, plan: dict[str, Any]) -> dict[str, Any]:
    """Names of ``benchmark.training_step``: no clock, no checks, and no more than the plan's steps need."""
    scaler = GIVEN if plan["scales_loss"] else None
    autocast = GIVEN if plan["dtype"] is not None else None
    clip = None if not plan["clips"] else GIVEN if draft.facts is not None else ...
    plain = scaler is None and clip is None
    found: dict[str, Any] = dict.fromkeys(("clock", "self.clock", "self.clock.mark", "self._check", "self._latest"))
    found |= {
        "fine": False,
        "self._unchecked": False,
        "single": not draft.accumulates,
        "self.forward": Code("self.loss" if autocast is None else "self._under_autocast"),
        "self.backward": Code("torch.Tensor.backward" if scaler is None else "self._scaled"),
        "self._plain_update": plain,
    }
    for name, value in {"scaler": scaler, "autocast": autocast, "clip": clip}.items():
        if value is not ...:
            found |= {name: value, f"self.{name}": value}
    if not plan["marks_steps"]:
        found |= {"begin": None, "self.begin": None}
    unused = {"_accumulate": not draft.accumulates, "_under_autocast": autocast is None, "_scaled": scaler is None}
    unused |= {"update": plain}
    unused |= {"make_scheduler": not plan["has_scheduler"]}
    unused |= {"evaluated": not plan["has_evaluate"], "enough": not plan["has_evaluate"]}
    unused |= {"configured": not plan["configures"], "on_train_start": not plan["changes_training_loader"]}
    found |= {f"self.{name}": None for name, is_unused in unused.items() if is_unused}
    return found if plan["rebuilds"] or plan["optimizer"] else {**found, "names": None}


def loader_options(draft: Draft, *, validation: bool = False) -> dict[str, Code]:
    """The plan's DataLoader options as Python, without those that torch refuses together."""
    options: dict[str, Any] = dict(draft.setup.loader)
    if validation:
        options = {name: value for name, value in options.items() if name in _OF_VALIDATION}
        options |= draft.setup.evaluation
    workers = options.get("num_workers")
    if workers is None and draft.facts is not None:
        workers = draft.facts.loader.num_workers
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
