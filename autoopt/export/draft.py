"""Facts by which the parts of the exported script are decided: the setup, the facts, and what was collected so far."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoopt.export.fold import Code
from autoopt.export.inline import Inliner, NotExportable
from autoopt.export.text import literal
from autoopt.loading.importing import dotted
from autoopt.records import Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.setup import Setup

_TRIVIAL_BATCH = (1.0, 0)


@dataclass
class Draft:
    """One script in the making.

    ``notes``: what could not be exported, a sentence each.
    """

    spec: str
    plan: Plan
    setup: Setup
    facts: WorkloadFacts | None
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

    # what the facts decide; None: not known, the script finds out itself

    @property
    def own_loader(self) -> bool | None:
        return self.facts.loader.own_loader if self.facts else None

    @property
    def odd_loader(self) -> bool:
        """A sampler of the user's own: its random numbers have to be shielded, as in a trial."""
        loader = self.facts.loader if self.facts else None
        return bool(loader and (loader.custom_sampler or loader.custom_batch_sampler))

    @property
    def map_style(self) -> bool:
        return self.facts.dataset.map_style if self.facts else True

    @property
    def known_length(self) -> bool:
        return self.facts is None or self.facts.steps_per_epoch is not None

    @property
    def criterion(self) -> bool | None:
        return not self.facts.loss_is_closure if self.facts else None

    @property
    def has_scheduler(self) -> bool:
        if self.setup.scheduler:
            return True
        return self.facts.optimizer.has_scheduler if self.facts else True

    @property
    def has_evaluate(self) -> bool:
        return self.facts.has_evaluate if self.facts else True

    @property
    def accumulates(self) -> bool:
        """Whether a step may have several micro-batches."""
        size = self.setup.batch.accumulation or (self.facts.accumulation if self.facts else None)
        return size is None or size > 1

    @property
    def clips(self) -> bool:
        return self.facts.clip_grad_norm is not None if self.facts else True

    @property
    def adapted(self) -> str | None:
        return self.facts.adapter if self.facts else None

    @property
    def moves_batch(self) -> bool:
        """Whether the batch differs from the user's, so that steps do too."""
        return self.setup.batch.size is not None or self.setup.batch.accumulation is not None

    @property
    def scales_rate(self) -> bool:
        return (self.setup.batch.learning_rate_factor, self.setup.batch.warmup_steps) != _TRIVIAL_BATCH

    @property
    def whole_schedule(self) -> bool:
        """Whether the schedule needs more than ``scheduler.step()``."""
        return self.scales_rate or (self.has_scheduler and self.moves_batch)

    @property
    def dtype(self) -> str | None:
        return self.setup.precision.dtype


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
