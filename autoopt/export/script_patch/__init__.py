"""The winning plan as a unified diff of a script, one hunk a change, as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.export.script_patch.editing import diff_of
from autoopt.export.script_patch.pieces import place_pieces
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.precision import place_precision
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.script_patch.wanted import edits_of
from autoopt.records import Change, PatchedChange, Plan, ScriptPatch, Sites
from autoopt.registry import Registry
from autoopt.strategy import Edit

__all__ = ["Placed", "patch_of", "placed"]


@dataclass(frozen=True)
class Placed:
    """A plan put into copies of the user's files; each change is in them as a whole or not at all."""

    placing: Placing
    changes: tuple[PatchedChange, ...]

    @property
    def whole(self) -> bool:
        """Whether every change of the plan is in the files."""
        return all(change.how == "patched" for change in self.changes)

    @property
    def patch(self) -> ScriptPatch:
        """The diff, and what of the plan no honest edit says."""
        diffs = [diff_of(before, after, name) for name, (before, after) in sorted(self._changed.items())]
        diffs += [diff_of(None, text, name) for name, text in self._added.items()]
        return ScriptPatch(diff="".join(diffs), changes=self.changes, environment=self.placing.environment)

    @property
    def texts(self) -> dict[str, str]:
        """The text of each file that is changed, by its name relative to the command's folder."""
        return {name: after for name, (before, after) in self._changed.items() if after != before} | self._added

    @property
    def _changed(self) -> dict[str, tuple[str, str]]:
        """The text of each file as it is and as it becomes."""
        files = {name: (edits.source.tree.code, edits.code()) for name, edits in self.placing.files.items()}
        return files | self.placing.configured

    @property
    def _added(self) -> dict[str, str]:
        """The file that is added next to the script."""
        added = self.placing.beside
        return {} if added is None else {added.file: added.text}


def patch_of(sites: Sites, plan: Plan, registry: Registry, device: str) -> ScriptPatch:
    """The diff that puts a plan into the user's files, and what of the plan no honest edit says.

    Args:
        sites: of the script, with file and line.
        plan: changes in their order; each is in the diff as a whole or not at all.
        registry: knows the strategies.
        device: type of the device, such as ``cuda``.
    """
    return placed(sites, plan, registry, device).patch


def placed(
    sites: Sites, plan: Plan, registry: Registry, device: str, sources: dict[str, Source] | None = None
) -> Placed:
    """A plan put into copies of the user's files; arguments as of :func:`patch_of`.

    Args:
        sources: files that were read so far, where several plans are put into the same ones.
    """
    placing, changes = Placing(sites, sources=sources), []
    for index, change in enumerate(plan.changes):
        trial = placing.on_trial()
        try:
            _place(trial, change, Plan(changes=plan.changes[:index]), registry, device)
        except NoHonestEditError as reason:
            changes.append(_unplaced(change, trial, reason))
            placing.environment = {**placing.environment, **reason.variables}
            continue
        placing = trial
        at = trial.touched
        changes.append(
            PatchedChange(
                strategy=change.strategy,
                setting=change.setting,
                how="patched",
                file=at.file if at else None,
                line=at.line if at else None,
                reason="; ".join(trial.notes),
            )
        )
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
        raise NoHonestEditError(f"it is set where the script is started: {words}", by_hand=True, variables=variables)
    for edit in edits:
        if edit.at == "batch":
            place_pieces(placing, edit)
        else:
            placing.place(edit)
    if precision is not None:
        place_precision(placing, precision, device)


def _unplaced(change: Change, trial: Placing, reason: NoHonestEditError) -> PatchedChange:
    at = trial.touched
    return PatchedChange(
        strategy=change.strategy,
        setting=change.setting,
        how="by hand" if reason.by_hand else "plan only",
        file=at.file if at else None,
        line=at.line if at else None,
        reason=str(reason),
    )
