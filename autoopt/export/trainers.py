"""What a Trainer's arguments cannot say of a plan, as code: a Lightning callback, a function for transformers.

Printed from the same setup as optimized_train.py and by the same means: transforms stand in it as source,
and no engine is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.errors import UsageError
from autoopt.export import trainer_pieces as pieces
from autoopt.export.assembly import compile_lines, flag_lines
from autoopt.export.data import add_loader_like, loader_options
from autoopt.export.draft import Draft
from autoopt.export.inline import OURS, Inliner
from autoopt.export.text import call, commented, indented, literal
from autoopt.records import Change, JsonDict, Plan, Result, Snippets
from autoopt.registry import Registry
from autoopt.setup import Setup

TARGETS = ("lightning", "transformers")
SAID_BY_CODE = frozenset({"warmup_steps", "warmup_ratio", "lr_scheduler_type"})
"""Arguments that a coded change brings itself, over the user's own schedule rather than in its place."""

_NAMES = ("training_loader", "validation_loader", "loader_like", "scaled", "parts", "same", "Optimized", "optimized")


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
    draft.inliner.reserve(*_NAMES)
    draft.use("torch")
    body = _lightning(draft) if target == "lightning" else _transformers(draft)
    environment = draft.setup.flags.get("env", {})
    draft.notes += [f"{name}={value} must stand in the environment" for name, value in environment.items()]
    return Code(_assembled(draft, target, body), frozenset(c.strategy for c in coded), tuple(draft.notes))


def _is_configuration(snippet: Snippets | None, target: str) -> bool:
    """Whether arguments say all of a change: nothing of it is left to do by hand."""
    keys: JsonDict | None = getattr(snippet, target) if snippet is not None else None
    return keys is not None and "_note" not in keys


def _can_be_coded(setup: Setup, target: str) -> bool:
    """Whether code around the Trainer can do all of a change: half of one is none. A Trainer's step is its own."""
    beyond = bool(setup.loss or setup.step or setup.transfer.prefetch)
    if target == "transformers":  # makes its loaders, its optimizer and its schedule itself
        beyond = beyond or bool(setup.loader or setup.optimizer or setup.scheduler)
    return not beyond


def _lightning(draft: Draft) -> str:
    lines = flag_lines(draft)
    dataset = _transformed(draft, "theirs.dataset")
    size = {"batch_size": literal(draft.setup.batch.size)} if draft.setup.batch.size else {}
    train, valid = {**size, **loader_options(draft)}, loader_options(draft, validation=True)
    if dataset or train:
        lines += _loader(draft, "train", "training_loader", train, dataset)
    if valid:
        lines += _loader(draft, "val", "validation_loader", valid, [])
    configure = _configure(draft)
    if configure:
        lines += pieces.WRAP_CONFIGURE.strip("\n").split("\n")
    draft.inliner.imports.add(("lightning", None, "lightning"))
    methods = [pieces.LIGHTNING_SETUP.strip("\n") + "\n" + indented("\n".join(lines or ["pass"]), 2)]
    if configure:
        methods.append(indented(f"def configured(self, trainer, module, configure):\n{indented(configure)}"))
    if dataset or train:
        methods.append(pieces.LIGHTNING_CHECK.strip("\n"))
    return pieces.LIGHTNING_CLASS.strip("\n") + "\n\n" + "\n\n".join(methods)


def _transformers(draft: Draft) -> str:
    lines = flag_lines(draft)
    model = _model(draft, "trainer.model")
    lines += model
    if draft.setup.dataset:
        lines += _transformed(draft, "trainer.train_dataset")
        lines.append("trainer.train_dataset = dataset")
    if draft.scales_rate:
        _add_scaled(draft)
        lines += pieces.WRAP_CREATE.format(scaled=_scaled(draft)).strip("\n").split("\n")
    return pieces.TRANSFORMERS.strip("\n") + "\n" + indented("\n".join([*lines, "return trainer"]))


def _transformed(draft: Draft, source: str) -> list[str]:
    made = [f"dataset = {call(made, ['dataset'])}" for made in draft.expressions(draft.setup.dataset, "dataset")]
    return [f"dataset = {source}", *made] if made else []


def _loader(draft: Draft, name: str, made: str, options: dict[str, str], dataset: list[str]) -> list[str]:
    """Adds the function that changes a loader; the lines that put it in."""
    add_loader_like(draft)
    draft.use("torch.utils.data", "DataLoader")
    changed = call("loader_like", ["theirs", "dataset" if dataset else "theirs.dataset", "own"], options, indent=18)
    inside = "\n".join([*dataset, "own = {}", f"changed = {changed}"])
    draft.add(pieces.LOADER.format(name=made, inside=indented(inside, 2)))
    draft.use("lightning.pytorch.utilities.model_helpers", "is_overridden")
    return pieces.WRAP_LOADER.format(name=name, made=made).strip("\n").split("\n")


def _configure(draft: Draft) -> str:
    """The body of ``configured``: the model as the plan wants it, then the optimizer over it."""
    setup = draft.setup
    lines = _model(draft, "module")
    optimizers = draft.expressions(setup.optimizer, "optimizer")
    schedulers = draft.expressions(setup.scheduler, "scheduler")
    if not (lines or optimizers or schedulers or draft.scales_rate):
        return ""
    if not (optimizers or schedulers or draft.scales_rate):
        return "\n".join([*lines, "return configure()"])
    draft.add(pieces.PARTS)
    if optimizers:
        lines.insert(0, "names = {id(p): name for name, p in module.named_parameters()}")
    lines.append("optimizer, schedule = parts(configure())")
    if optimizers:
        draft.inliner.want("autoopt.benchmark.optimizer", "_Rebuild")
        draft.inliner.want("autoopt.adapters.lightning_steps", "rebound")
        lines.append("factory = _Rebuild(optimizer, module, names)")
        lines += [f"factory = {call(made, ['factory'])}" for made in optimizers]
        lines.append("optimizer = factory(list(module.parameters()))")
        lines += ["if schedule is not None:", '    rebound(schedule["scheduler"], optimizer)']
    if schedulers:
        lines.append("make = None")
        lines += [f"make = {call(made, ['make'])}" for made in schedulers]
        total = "int(trainer.estimated_stepping_batches)"
        lines.append(f'schedule = {{"scheduler": make(optimizer, {total}), "interval": "step"}}')
    if draft.scales_rate:
        _add_scaled(draft)
        lines.append(_scaled(draft))
    lines.append('return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule}')
    return "\n".join(lines)


def _model(draft: Draft, name: str) -> list[str]:
    """Statements that change the model in place."""
    changes = draft.expressions(draft.setup.model, "model")
    lines = [f"same({name}, {call(made, [name])})" for made in changes]
    if changes:
        draft.add(pieces.SAME)
    return lines + compile_lines(draft, name)


def _add_scaled(draft: Draft) -> None:
    draft.inliner.want("autoopt.benchmark.schedule", "multiplier")
    draft.add(pieces.SCALED)


def _scaled(draft: Draft) -> str:
    batch = draft.setup.batch
    return f"scaled(optimizer, {literal(batch.learning_rate_factor)}, {literal(batch.warmup_steps)})"


def _assembled(draft: Draft, target: str, body: str) -> str:
    definitions = draft.inliner.definitions()  # first: their annotations may need an import
    head = [f'"""{pieces.TITLE[target].format(spec=_plain(draft.spec))}', ""]
    head += ["Of the plan:", *map(_listed, draft.plan.changes)] if draft.plan.changes else ["Nothing: they say it all."]
    notes = [line for note in draft.notes for line in commented(f"Not here: {note}")]
    blocks = ["\n".join([*head, '"""', *notes]), "from __future__ import annotations"]
    blocks.append("\n".join(draft.inliner.import_lines()))
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*definitions, *draft.pieces, body]) + "\n"


def _listed(change: Change) -> str:
    setting = ", ".join(f"{key}={value}" for key, value in change.setting.items())
    return f"  {change.strategy}{f'  ({_plain(setting)})' if setting else ''}"


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")
