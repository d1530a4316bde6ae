"""A training script as it is: what was found in it, with file and line, and the patch that a run ends with."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.record import JsonDict, Record
from autoopt.records.whole_run import RunParts

SiteKind = Literal[
    "loader_training",
    "loader_validation",
    "model",
    "loss",
    "optimizer",
    "scaler",
    "scheduler",
    "autocast",
    "compile",
    "evaluation",
    "frozen",
    "checkpoint",
    "logger",
    "device_wait",
    "forced",
    "step",
    "batch_without_loader",
    "trainer",
    "import",
    "passed_over",
]


class Place(Record):
    """Lines of the user's own code. ``file``: relative to the command's folder where it lies in it; lines from 1."""

    file: str
    line: int
    end_line: int
    function: str = "<module>"


class Site(Place):
    """Where the script makes or does something that a step consists of.

    The lines are those of the call: where an object is made, or where something is done (``loss``: backward;
    ``step``: the optimizer's step; ``evaluation``: the first forward pass without gradients; ``frozen``: a call of a
    module without anything to learn in a training step).

    ``call``: what is called there, such as ``DataLoader`` or ``torch.save``. ``name``: the object's class.
    ``direct``: the call stands on these lines itself; otherwise a library makes it on behalf of them.
    ``options``: as found in the live object. ``used``: where an object is used while training: a loader iterated,
    a model called; ``callers``: of each of these the user's lines that led there, the nearest first.
    ``per_step``: how often it happened in a training step; None where it is not counted.
    ``seconds_per_step``: what it takes of a step; None where it was not timed.
    ``takes``: arguments that the object's class takes, where it is not torch's own; None where it takes any.
    ``calls``: where a call makes several loaders, which of its runs made those of this site, from 0; one that makes
    a loader of the same data again is left out.
    ``end_column``: where the call ends in its last line, in bytes from 0 as the interpreter counts; None where it does
    not know. It distinguishes calls that stand on the same lines.
    """

    kind: SiteKind
    call: str = ""
    name: str = ""
    direct: bool = True
    options: JsonDict = field(default_factory=dict)
    used: tuple[Place, ...] = ()
    callers: tuple[tuple[Place, ...], ...] = ()
    calls: tuple[int, ...] = ()
    takes: tuple[str, ...] | None = None
    end_column: int | None = None
    per_step: float | None = None
    seconds_per_step: float | None = None


class Sites(Record):
    """All that one run of the script has shown.

    ``command``: its words, the interpreter first; ``cwd``: the folder it runs in. ``steps``: training steps that
    were watched. ``period``: the optimizers of one step in the order in which they step, as indices into the sites
    of kind ``optimizer``. ``accumulation``: how often the same backward line runs for a step of an optimizer, on the
    mean (all calls of a closure are one). ``seeded``: whether the script seeds torch.
    ``path``: the interpreter's ``sys.path`` before the script's own folder stands in it; empty where it is not known.
    ``early``: what the script changes in its process before it imports torch (environment variables, its cores), which
    torch may read as it is imported. ``unit``: steps where samples cannot be counted. ``step_seconds``: median of the
    watched steps; ``shares``: of the steps' time by stage; a first measurement, while the script was listened to
    closely. ``run``: the parts of its whole run by that look. ``metric_patterns``: numbers that it printed at its
    evaluations by then, each of which may be its metric, as ``--metric`` takes them.
    """

    command: tuple[str, ...]
    cwd: str
    sites: tuple[Site, ...] = ()
    steps: int = 0
    period: tuple[int, ...] = ()
    accumulation: float = 1
    seeded: bool | None = None
    path: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    step_seconds: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    run: RunParts | None = None
    metric_patterns: tuple[str, ...] = ()
    unit: Literal["samples", "steps"] = "samples"

    def of(self, *kinds: SiteKind) -> tuple[Site, ...]:
        """The sites of these kinds, in the order in which they were met."""
        return tuple(site for site in self.sites if site.kind in kinds)


class PatchedChange(Record):
    """The fate of a kept change in the patch.

    ``how``: ``patched``, a hunk of the diff; ``plan only``, ``autoopt run --plan`` applies it and no honest edit
    does; ``by hand``, the line named is to be changed by a user. ``reason``: why it is no hunk, or what to write; of
    a hunk, what it means beyond its lines, such as an option that no longer decides.
    """

    strategy: str
    setting: JsonDict = field(default_factory=dict)
    how: Literal["patched", "plan only", "by hand"]
    file: str | None = None
    line: int | None = None
    reason: str = ""


class ScriptPatch(Record):
    """The winning plan as a unified diff, one hunk a change, and what of it could not be said so.

    ``environment``: variables to start the command with, for those changes that they make; part of no figure.
    """

    diff: str = ""
    changes: tuple[PatchedChange, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
