"""The winning plan as a plain PyTorch script around the user's ``build()``, from the setup that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.export.draft import Draft, user_import
from autoopt.export.inline import OURS, Inliner
from autoopt.export.known import known_of
from autoopt.export.text import commented, literal
from autoopt.loading.user_build import UserBuild
from autoopt.records import Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry
from autoopt.setup import Setup


@dataclass(frozen=True)
class Script:
    """optimized_train.py. ``notes``: what of the plan it lacks, a sentence each."""

    text: str
    notes: tuple[str, ...] = ()


def script(workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts | None = None) -> str:
    """The text of optimized_train.py; see :func:`export_script`."""
    return export_script(workload_spec, plan, registry, facts=facts).text


def export_script(workload_spec: str, plan: Plan, registry: Registry, *, facts: WorkloadFacts | None = None) -> Script:
    """A script that trains what a trial of the plan trains, step for step.

    Args:
        workload_spec: the import string of the user's ``build``.
        plan: what is printed.
        registry: folds the plan.
        facts: of the workload; what they tell is not asked again in the script.
    """
    base = Setup().with_precision(dtype=facts.precision) if facts and facts.precision else Setup()
    processes = plan.processes
    homes = {type(registry[change.strategy]).__module__ for change in plan.changes}
    draft = Draft(workload_spec, plan, registry.fold(plan, base), facts, Inliner((*OURS, *homes)))
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
    inliner.known = known_of(draft, build)
    for module, names in _PRINTED.items():
        for name in names:
            inliner.want(module, name)
    return Script(_assembled(draft, before, imported), tuple(draft.notes))


_PRINTED = {
    "autoopt.export.printed.data": ("groups",),
    "autoopt.export.printed.run": ("train",),
    "autoopt.export.printed.command": ("arguments", "main"),
}
"""Names that a script is asked for: from outside, and by who runs it."""
_NAMES = tuple(name for names in _PRINTED.values() for name in names)
_ENTRY = 'if __name__ == "__main__":\n    main()'


def _assembled(draft: Draft, before: list[str], imported: list[str]) -> str:
    setup = draft.setup
    blocks = [_docstring(draft), "from __future__ import annotations"]
    environment = dict(setup.flags.get("env", {}))
    draft.use("os")
    draft.use("sys")
    copied = draft.inliner.definitions()  # first: their annotations may need an import
    lines = draft.inliner.import_lines()
    if environment:
        told = [f"os.environ[{literal(k)}] = {literal(str(v))}" for k, v in sorted(environment.items())]
        blocks += ["import os", "\n".join([*told, "# set before torch is imported: it reads them only then"])]
        lines = [line for line in lines if line != "import os"]
    blocks.append("\n".join(lines))
    blocks.append("\n".join(before))
    blocks.append("\n".join(f"{line}  # noqa: E402" for line in imported))
    return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*copied, _ENTRY]) + "\n"


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
