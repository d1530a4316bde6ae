"""Checkpoints: written while training goes on, or less often."""

from __future__ import annotations

import ast
from math import sqrt
from pathlib import Path

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.predictions import LEAST_SHARE, declared, gain, seconds_of
from autoopt_strategies.trying import Setting

FAILURE_SECONDS = 24 * 3600.0
"""Seconds between failures of one machine that the best interval is worked out for."""
STATE = 3
"""Sizes of the parameters that a checkpoint holds at most, about: with the two states of Adam."""
PART = "autoopt.benchmark.saving"
FILES = frozenset({"shutil", "os.replace", "os.rename", "os.link", "os.symlink", "os.stat", "os.path.getsize"})
"""What works on files: a line after the save may need the file that is still being written."""


class Checkpoints(Strategy):
    """Writes checkpoints while training goes on, or less often where the workload says how often.

    No run and no benchmark has kept it so far.

    What it does: ``lines``: at these lines of a script ``torch.save`` is given a copy, which a thread writes next to
        the file and then puts in its place; ``torch.load`` in the script's files waits for it. ``checkpoint_every``:
        steps between checkpoints by Young's formula.
    When it helps: checkpoints take a good part of the run: large states, a slow disk, a save in every epoch.
    When it does not: short runs without checkpoints; states that are copied in the time that they take to write; files
        that the script moves or measures after it has saved them, and whole models instead of a ``state_dict``, which
        are not read back to be compared; a library's own trainer.
    What it costs: memory for one copy of what is saved, on its device; a write that fails is reported at the next save.
        Less often: more is trained again after a failure.
    Source: Mohan et al., "CheckFreq: frequent, fine-grained DNN checkpointing", FAST 2021;
        https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html;
        Young, "A first order approximation to the optimum checkpoint interval", CACM 1974
    """

    name = "checkpoints"
    title = "checkpoints written during training"
    stages = frozenset({"checkpoint"})
    risk = Risk.EXACT
    example = Example({"checkpoint_every": 500}, setup=Setup().with_cadence(checkpoint_every=2))

    def applies(self, case: Case) -> Applies:
        if case.sites is not None and not case.sites.of("checkpoint"):
            return Applies.no("the script was not seen to save a checkpoint by torch.save")
        if case.sites is None and case.setup.cadence.checkpoint_every is None:
            return Applies.no("the workload does not say how often it saves checkpoints")
        if case.pipeline is not None:
            share = seconds_of(case, "checkpoint") / (case.pipeline.step_seconds or 1.0)
            if share < LEAST_SHARE:
                return Applies.no(f"checkpoints take {share:.1%} of the time")
        if case.sites is None:
            return Applies.yes() if self._every(case) else Applies.no("checkpoints are as rare as they should be")
        lines = _lines(case)
        if not lines:
            return Applies.no("a library saves the checkpoints, in lines of its own")
        return Applies.yes() if _loads(case, lines) is not None else Applies.no("the script works on files by itself")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """What is left: a copy at the speed of memory, of a state as large as Adam's; what saving less often leaves."""
        saving = seconds_of(case, "checkpoint")
        if "checkpoint_every" in setting:
            now = case.setup.cadence.checkpoint_every or setting["checkpoint_every"]
            return gain(case, {"checkpoint": saving * now / setting["checkpoint_every"]})
        run, speed = case.workload.run, case.environment.peaks.memory_bytes_per_second
        every = run.checkpoint_every if run is not None else None
        copied = 2 * STATE * case.workload.model.parameter_bytes / speed / every if speed and every else 0.0
        return declared(gain(case, {"checkpoint": min(saving, copied)}))

    def settings(self, case: Case) -> list[Setting]:
        if case.sites is None:
            return self._every(case)
        lines = _lines(case)
        return [{"lines": lines, "loads": _loads(case, lines) or []}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        if "checkpoint_every" in setting:
            return setup.with_cadence(checkpoint_every=setting["checkpoint_every"])
        return setup.with_flags(save_in_background=tuple(setting["lines"]))

    def recipe(self, setting: Setting) -> Recipe:
        if "lines" in setting:
            calls = [("save", line, "save_in_background") for line in setting["lines"]]
            calls += [("load", line, "load_saved") for line in setting["loads"]]
            edits = tuple(
                Edit("call", (*line.rsplit(":", 1), name, f"{by}({{arguments}})"), parts=(f"{PART}:{by}",))
                for name, line, by in calls
            )
            code = "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)  # or torch.save in a thread"
            return Recipe.noted(code, "save in a thread, from a copy of the state", edits)
        steps = setting["checkpoint_every"]
        return Recipe(
            pytorch=f"if step % {steps} == 0:\n    torch.save(...)",
            lightning={"_note": f"ModelCheckpoint(every_n_train_steps={steps})"},
            transformers={"save_strategy": "steps", "save_steps": steps},
            accelerate={"_note": f"accelerator.save_state() every {steps} steps"},
        )

    def _every(self, case: Case) -> list[Setting]:
        now = case.setup.cadence.checkpoint_every or 1
        if case.pipeline is None or not case.pipeline.step_seconds:
            return [{"checkpoint_every": 2 * now}]
        saving = seconds_of(case, "checkpoint") * now
        steps = int(sqrt(2 * saving * FAILURE_SECONDS) / case.pipeline.step_seconds)
        return [{"checkpoint_every": steps}] if steps > now else []


def _lines(case: Case) -> list[str]:
    """The user's own lines that save, as ``train.py:38``."""
    sites = case.sites.of("checkpoint") if case.sites is not None else ()
    return [f"{site.file}:{site.line}" for site in sites if site.direct and not site.file.startswith("/")]


def _loads(case: Case, lines: list[str]) -> list[str] | None:
    """Lines of ``torch.load`` in the files that save; None where they work on files otherwise, or cannot be read."""
    assert case.sites is not None
    found: list[str] = []
    for file in sorted({line.rsplit(":", 1)[0] for line in lines}):
        try:
            tree = ast.parse(Path(case.sites.cwd, file).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            return None
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in FILES or name.split(".")[0] in FILES:
                return None
            if name == "torch.load":
                found.append(f"{file}:{node.lineno}")
    return found
