"""Code for what a Trainer's arguments cannot say of a plan: a Lightning callback, a function for transformers.

Printed from the same setup as optimized_train.py and by the same means: transforms stand in it as source,
and no engine is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.errors import UsageError
from autoopt.export.draft import Draft
from autoopt.export.inline import OURS, Inliner
from autoopt.export.known import known_of
from autoopt.export.text import commented
from autoopt.records import Change, JsonDict, Plan, Result, Snippets
from autoopt.registry import Registry
from autoopt.setup import Setup

TARGETS = ("lightning", "transformers")
SAID_BY_CODE = frozenset({"warmup_steps", "warmup_ratio", "lr_scheduler_type"})
"""Arguments that a coded change brings itself, over the user's own schedule rather than in its place."""

_PRINTED = {
    "lightning": ("autoopt.export.printed.lightning", "Optimized"),
    "transformers": ("autoopt.export.printed.transformers", "optimized"),
}
_TITLE = {
    "lightning": "What Lightning's arguments cannot say of the plan that autoopt measured for {spec}.",
    "transformers": "What TrainingArguments cannot say of the plan that autoopt measured for {spec}.",
}


@dataclass(frozen=True)
class Code:
    """A module to import. ``covered``: the strategies it holds; ``notes``: what of them it lacks."""

    text: str
    covered: frozenset[str]
    notes: tuple[str, ...] = ()


def trainer_code(result: Result, target: str, registry: Registry) -> Code:
    """The part of a result's plan that the target's arguments cannot say.

    Args:
        result: a finished run.
        target: ``lightning`` or ``transformers``.
        registry: folds the plan.

    Raises:
        UsageError: the target's plan is configuration alone.
    """
    if target not in TARGETS:
        raise UsageError(f"there is no code for {target}", hint=f"there is for: {', '.join(TARGETS)}")
    said = {each.strategy: each for each in result.snippets}
    left = (c for c in result.best.plan.changes if not _is_configuration(said.get(c.strategy), target))
    coded = tuple(change for change in left if _can_be_coded(registry.fold(Plan(changes=(change,))), target))
    plan = Plan(changes=coded)
    homes = {type(registry[change.strategy]).__module__ for change in coded}
    draft = Draft(result.workload.spec, plan, registry.fold(plan), None, Inliner((*OURS, *homes)))
    module, name = _PRINTED[target]
    draft.inliner.reserve(name, module=module)
    draft.inliner.known = known_of(draft)
    draft.inliner.want(module, name)
    environment = draft.setup.flags.get("env", {})
    draft.notes += [f"{name}={value} must stand in the environment" for name, value in environment.items()]
    return Code(_assembled(draft, target), frozenset(c.strategy for c in coded), tuple(draft.notes))


def _is_configuration(snippet: Snippets | None, target: str) -> bool:
    """Whether arguments say all of a change: nothing of it is left to do by hand."""
    keys: JsonDict | None = getattr(snippet, target) if snippet is not None else None
    return keys is not None and "_note" not in keys


def _can_be_coded(setup: Setup, target: str) -> bool:
    """Whether code around the Trainer can do all of a change: half of one is none. A Trainer's step is its own."""
    beyond = bool(setup.loss or setup.step or setup.transfer.prefetch)
    if target == "transformers":  # makes its loaders, its optimizer and its schedule itself
        beyond = beyond or bool(setup.loader or setup.optimizer or setup.scheduler or setup.collate or setup.sampler)
    return not beyond


def _assembled(draft: Draft, target: str) -> str:
    definitions = draft.inliner.definitions()  # first: their annotations may need an import
    head = [f'"""{_TITLE[target].format(spec=_plain(draft.spec))}', ""]
    head += ["Of the plan:", *map(_listed, draft.plan.changes)] if draft.plan.changes else ["Nothing: they say it all."]
    notes = [line for note in draft.notes for line in commented(f"Not here: {note}")]
    blocks = ["\n".join([*head, '"""', *notes]), "from __future__ import annotations"]
    blocks.append("\n".join(draft.inliner.import_lines()))
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join(definitions) + "\n"


def _listed(change: Change) -> str:
    setting = ", ".join(f"{key}={value}" for key, value in change.setting.items())
    return f"  {change.strategy}{f'  ({_plain(setting)})' if setting else ''}"


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")
