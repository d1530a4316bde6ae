"""``autoopt export``: the winning plan of a result for one way of training, and what that way cannot express.

Everything comes from the result document, where each kept change stands as its strategy's recipe wrote
it, so that an export needs neither torch nor the user's code. The plain script was written by the run.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autoopt.errors import UsageError
from autoopt.export.script import Draft, listed, plain
from autoopt.export.text import call, commented, literal
from autoopt.options.options import TARGETS
from autoopt.records import JsonDict, Plan, Result, Snippets
from autoopt.registry import Registry


def snippets(plan: Plan, registry: Registry) -> tuple[Snippets, ...]:
    """Snippets of result.json for each change of a plan: its lines per way of training.

    A strategy whose ``recipe`` raises gives none; that must not cost the result of a run.
    """
    found = []
    for change in plan.changes:
        strategy = registry[change.strategy]
        title, stages = strategy.title or change.strategy, tuple(sorted(strategy.stages))
        known: JsonDict = {**change.model_dump(), "title": title, "risk": str(strategy.risk), "stages": stages}
        with suppress(Exception):  # a third party's recipe; the change itself was measured all the same
            recipe = strategy.recipe(dict(change.setting))
            found.append(Snippets(**known, **{target: getattr(recipe, target) for target in TARGETS}))
            continue
        found.append(Snippets(**known))
    return tuple(found)


CODED = {"lightning": ("Lightning's arguments", "Optimized"), "transformers": ("TrainingArguments", "optimized")}
"""Targets that code is printed for: the arguments that it goes beyond, and its name in ``_TRAINERS``."""
_TRAINERS = "autoopt.export.printed.trainers"
SAID_BY_CODE = frozenset({"warmup_steps", "warmup_ratio", "lr_scheduler_type"})
"""Arguments that a coded change brings itself, over the user's own schedule rather than in its place."""


@dataclass(frozen=True)
class Code:
    """A module to import. ``covered``: the strategies it holds; ``notes``: what of them it lacks."""

    text: str
    covered: frozenset[str]
    notes: tuple[str, ...] = ()


def trainer_code(result: Result, target: str, registry: Registry) -> Code:
    """The part of a result's plan that the target's arguments cannot say.

    Raises:
        UsageError: the target's plan is configuration alone.
    """
    if target not in CODED:
        raise UsageError(f"there is no code for {target}", hint=f"there is for: {', '.join(CODED)}")
    said = {s.strategy: keys for s in result.snippets if (keys := getattr(s, target)) is not None}
    left = (c for c in result.best.plan.changes if "_note" in said.get(c.strategy, {"_note": ""}))
    beyond: tuple[str, ...] = ("loss", "step")  # half of a change is none, and a Trainer's step is its own
    if target == "transformers":  # makes its loaders, its optimizer and its schedule itself
        beyond = (*beyond, "loader", "optimizer", "scheduler", "collate", "sampler")
    setups = ((change, registry.fold(Plan(changes=(change,)))) for change in left)
    coded = tuple(c for c, s in setups if not s.transfer.prefetch and not any(getattr(s, part) for part in beyond))
    draft = Draft(Plan(changes=coded), registry)
    arguments, name = CODED[target]
    definitions, imports = draft.printed({_TRAINERS: (name,)})
    environment = draft.setup.flags.get("env", {})
    draft.notes += [f"{name}={value} must stand in the environment" for name, value in environment.items()]
    what = f"What {arguments} cannot say of the plan that autoopt measured for {plain(result.workload.spec)}."
    head = [f'"""{what}', "", *(["Of the plan:", *listed(coded)] if coded else ["Nothing: they say it all."]), '"""']
    head += [line for note in draft.notes for line in commented(f"Not here: {note}")]
    blocks = ["\n".join(head), "from __future__ import annotations", "\n".join(imports)]
    text = "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join(definitions) + "\n"
    return Code(text, frozenset(c.strategy for c in coded), tuple(draft.notes))


_ACCELERATE_FILE = {"mixed_precision", "dynamo_config", "downcast_bf16", "use_cpu"}
"""Keys of accelerate's configuration file; everything else is an argument of ``Accelerator``."""


def export(
    result: Result, target: str, *, directory: Path | None = None, code: Code | None = None, module: str = ""
) -> tuple[str, tuple[str, ...]]:
    """The winning plan for a target.

    Args:
        target: ``pytorch``, ``lightning``, ``transformers`` or ``accelerate``.
        directory: of the run, for its script; where the result says it was, if None.
        code: what stands in a module of its own (``trainers.trainer_code``), and need not be said.
        module: the name by which that is imported.

    Returns:
        The text, and what it does not hold, a sentence each.

    Raises:
        UsageError: there is no such target, or the script of the run is gone.
    """
    if target not in TARGETS:
        raise UsageError(f"there is no target {target!r}", hint=f"there are: {', '.join(TARGETS)}")
    if target == "pytorch":
        path = (directory or Path(result.reproduce.run_directory or ".")) / "optimized_train.py"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"the run's script {path} cannot be read: {error.strerror or error}",
                hint="name the run directory; optimized_train.py is written at the end of a run",
            ) from None
        return text, tuple(line[2:] for line in text.splitlines() if line.startswith("# Not in this script:"))
    keys, notes = _merged(result, target, code)
    if code is not None and target == "lightning":
        keys["callbacks"] = [{"class_path": f"{module}.Optimized"}]
    if target == "transformers":
        # for ``HfArgumentParser.parse_json_file``, or ``TrainingArguments(**json.load(file))``
        return json.dumps(keys, indent=2) + "\n", tuple(notes)
    if target == "accelerate":
        return _accelerate(keys, notes), tuple(notes)
    words = {name: literal(value) for name, value in keys.items() if name != "callbacks"}
    words |= {"callbacks": "[Optimized()]"} if "callbacks" in keys else {}
    head = commented("For LightningCLI: python my_script.py fit --config FILE; in Python:")
    head += [f"# {line}" for line in call("Trainer", [], words).splitlines()]
    return _noted(head, notes, {"trainer": keys}), tuple(notes)


def _merged(result: Result, target: str, code: Code | None = None) -> tuple[JsonDict, list[str]]:
    """All keys of a target, a later change over an earlier one, and what is to be said."""
    keys: JsonDict = {}
    notes: list[str] = list(code.notes) if code is not None else []
    known = {each.strategy: each for each in result.snippets}
    for each in result.best.plan.changes:
        change = known.get(each.strategy) or Snippets(strategy=each.strategy, setting=each.setting)
        recipe = getattr(change, target)
        setting = ", ".join(f"{name}={value}" for name, value in change.setting.items())
        title = f"{change.strategy} ({setting})" if setting else change.strategy
        if code is not None and change.strategy in code.covered:
            keys |= {k: v for k, v in (recipe or {}).items() if k != "_note" and k not in SAID_BY_CODE}
            continue
        if recipe is None:
            notes.append(f"{title}: {target} has no way to say this; it is in optimized_train.py")
            continue
        for key, value in recipe.items():
            if key == "_note":
                notes.append(f"{title}: manually: {value}")
                continue
            if key in keys and keys[key] != value:
                notes.append(f"{title}: {key}={value} takes the place of {keys[key]}")
            keys[key] = value
    return keys, notes


def _accelerate(keys: JsonDict, notes: list[str]) -> str:
    inside = {name: value for name, value in keys.items() if name in _ACCELERATE_FILE}
    for name, value in keys.items():
        if name not in inside:
            text = literal(value)
            if name == "dataloader_config" and isinstance(value, dict):  # Accelerator takes an object
                text = call("DataLoaderConfiguration", [], {key: literal(item) for key, item in value.items()})
            notes.append(f"manually: Accelerator({name}={text})")
    fixed: JsonDict = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": 1,
    }
    return _noted(["# For accelerate launch --config_file FILE my_script.py"], notes, {**fixed, **inside})


def _noted(head: list[str], notes: list[str], keys: JsonDict) -> str:
    return "\n".join([*head, *(line for note in notes for line in commented(f"- {note}")), *_yaml(keys)]) + "\n"


def _yaml(value: JsonDict, depth: int = 0) -> list[str]:
    """Nested mappings of plain values; a JSON value is a YAML value."""
    lines = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            lines += [f"{'  ' * depth}{key}:", *_yaml(item, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {json.dumps(item)}")
    return lines
