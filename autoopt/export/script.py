"""The winning plan as a plain PyTorch script around the user's ``build()``, from the setup that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.export import pieces
from autoopt.export.data import add_data
from autoopt.export.draft import Draft, user_import
from autoopt.export.inline import OURS, Inliner
from autoopt.export.loop import train_function
from autoopt.export.text import commented, literal
from autoopt.records import Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry
from autoopt.setup import Setup


@dataclass(frozen=True)
class Script:
    """optimized_train.py. ``notes``: what of the plan it lacks, a sentence each."""

    text: str
    notes: tuple[str, ...] = ()


def script(
    workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts | None = None, base: Setup | None = None
) -> str:
    """The text of optimized_train.py; see :func:`export_script`."""
    return export_script(workload_spec, plan, registry, facts=facts, base=base).text


def export_script(
    workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts | None = None, base: Setup | None = None
) -> Script:
    """A script that trains what a trial of the plan trains, step for step.

    Args:
        workload_spec: the import string of the user's ``build``.
        plan: what is printed.
        registry: folds the plan.
        facts: of the workload; what they tell is not asked again in the script.
        base: the workload's own setup; from the facts where None.
    """
    if base is None:
        base = Setup().with_precision(dtype=facts.precision) if facts and facts.precision else Setup()
    homes = {type(registry[change.strategy]).__module__ for change in plan.changes}
    draft = Draft(workload_spec, plan, registry.fold(plan, base), facts, Inliner((*OURS, *homes)))
    before, imported, build = user_import(workload_spec)
    draft.inliner.reserve(*_NAMES, build.split(".")[0])
    _helpers(draft)
    train = train_function(draft, build)
    text = _assembled(draft, before, imported, train)
    return Script(text, tuple(draft.notes))


_NAMES = (
    *("seed_everything", "mix", "random_state", "set_random_state", "to_device", "moved", "arrived", "groups"),
    *("loader_like", "training_loader", "validation_loader", "OnDevice", "evaluate", "save", "arguments"),
    *("default_device", "train", "main"),
)


def _helpers(draft: Draft) -> None:
    for module in ("argparse", "hashlib", "os", "random", "sys", "time", "torch"):
        draft.use(module)
    draft.inliner.imports.add(("numpy", None, "np"))
    draft.add(pieces.SEEDING)
    add_data(draft)
    draft.add(pieces.GROUPS)
    if draft.has_evaluate:
        draft.add(pieces.ON_DEVICE)
        autocast = f", torch.autocast(device.type, dtype=torch.{draft.dtype})" if draft.dtype else ""
        draft.add(pieces.EVALUATE.format(device=", device" if draft.dtype else "", autocast=autocast))
    draft.add(pieces.SAVE)
    draft.add(pieces.ARGUMENTS.format(checkpoint_every='help="steps between checkpoints"'))


def _assembled(draft: Draft, before: list[str], imported: list[str], train: str) -> str:
    setup = draft.setup
    blocks = [_docstring(draft), "from __future__ import annotations"]
    environment = dict(setup.flags.get("env", {}))
    copied = draft.inliner.definitions()  # first: their annotations may need an import
    lines = draft.inliner.import_lines()
    if environment:
        told = [f"os.environ[{literal(k)}] = {literal(str(v))}" for k, v in sorted(environment.items())]
        blocks += ["import os", "\n".join([*told, "# set before torch is imported: it reads them only then"])]
        lines = [line for line in lines if line != "import os"]
    blocks.append("\n".join(lines))
    blocks.append("\n".join(before))
    blocks.append("\n".join(f"{line}  # noqa: E402" for line in imported))
    definitions = [*copied, *draft.pieces, train, pieces.MAIN.strip("\n")]
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join(definitions) + "\n"


def _docstring(draft: Draft) -> str:
    lines = [f'"""Trains {_plain(draft.spec)} with the plan that autoopt measured, in plain PyTorch.', ""]
    if draft.plan.changes:
        lines.append("The plan:")
        for change in draft.plan.changes:
            setting = ", ".join(f"{key}={value}" for key, value in change.setting.items())
            lines.append(f"  {change.strategy}{f'  ({_plain(setting)})' if setting else ''}")
    else:
        lines.append("The plan is empty: this is your own training, unchanged.")
    lines += ["", "Run it where you run your own training; --help shows what it takes.", '"""']
    for note in draft.notes:
        lines += ["", *commented(f"Not in this script: {note}")]
    return "\n".join(line.rstrip() for line in lines)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")
