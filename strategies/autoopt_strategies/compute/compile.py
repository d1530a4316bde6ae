"""torch.compile: operators fused into fewer kernels, no Python within the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.predictions import COMPUTE, after_paying, busy_share, declared, gain, issued, ranged, seconds_of
from autoopt_strategies.trying import Setting, Settings, kept

FIRST, EACH = 7.0, 0.8
"""Seconds of compilation: a part that is always paid, and one for each module with parameters of its own.

Fitted to measured first steps on two cores: 9.5 s (small MLP), 33 s (small ResNet), 46 s (small GPT).
"""
AUTOTUNE, AUTOTUNED = "max-autotune", 4.0
"""The mode that tries kernels out, and how many times as long its compilation takes, about."""
PAYS, TRIED = 20, 4
"""Times its seconds that the planned run must take, since it brings a few hundredths, and that the search has left."""
CONTAINERS = frozenset({"ModuleList", "Sequential", "ModuleDict"})
STAY = frozenset({"matmul", "other"})
"""Kinds of operators that compiled code calls as they are."""
STORM = "compiled again and again"
"""Start of a trial's reason in which one function was compiled for one shape or number after the other."""
NO_TOOLS = ("working triton installation", "Failed to find C compiler", "too old to be supported by the triton")
"""Of torch's and triton's errors where nothing can be compiled on this machine: a package, a compiler or a device that
triton supports is missing."""


def compiled_loss(loss: Callable[..., Any], mode: str | None, dynamic: bool | None) -> Callable[..., Any]:
    """The loss, and the model that it calls, as one graph."""
    import torch

    return torch.compile(loss, mode=mode, dynamic=dynamic)


class CompileModel(Strategy):
    """Compiles the model with ``torch.compile``: whole, or only the blocks that repeat.

    What it does: traces the model, fuses memory-bound operators, writes kernels of its own.
        Modes: ``default``; ``reduce-overhead`` replays CUDA graphs; ``max-autotune`` tries kernels out, where the
        planned run is long enough to pay for that;
        ``dynamic`` expects any shape; ``regional`` compiles a repeated block once; ``loss`` compiles the loss
        with the model, as one graph.
    When it helps: memory-bound elementwise chains, many small operators, long runs.
    When it does not: runs of a minute, since compilation itself takes a good part of one; shapes that change
        all the time, or Python that cannot be traced, compile again and again.
    What it costs: seconds to minutes of compilation in each fresh process, charged to the run.
    Source: Ansel et al., "PyTorch 2", ASPLOS 2024; https://docs.pytorch.org/docs/stable/torch.compiler.html
    """

    name = "compile"
    title = "compiled model"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    after = frozenset({"channels_last", "flash_attention", "checkpointing"})
    example = Example({"mode": "default"}, losses=1e-3, trains=False)

    def applies(self, case: Case) -> Applies:
        if case.setup.compile is not None and case.plan.setting(self.name) is None:
            return Applies.no("the workload is compiled already")
        if case.device == "cpu" and not case.environment.compiler:
            return Applies.no("compiling for the CPU needs a C++ compiler, and there is none")
        if case.device == "cuda" and case.environment.packages and "triton" not in case.environment.packages:
            return Applies.no("compiling for CUDA needs triton, which is not installed")
        if case.device not in ("cpu", "cuda"):
            return Applies.no(f"torch.compile is not tried on {case.device}")
        if case.plan.setting("cuda_graphs") is not None:
            return Applies.no("the model runs from a CUDA graph already")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """At the very best what is fused runs at its ceiling, and only kernels that stay are issued; less what is paid.

        Products and a library's own kernels (recurrent layers among them) stay what they are. Of what is left to gain
        the likeliest is half: what a fused kernel computes between reading and writing, and guards around it, cost too.
        """
        if case.pipeline is None:
            return None
        found = case.pipeline.round.operators
        whole = sum(operator.seconds for operator in found)
        if whole <= 0:
            return None
        fused = [operator for operator in found if operator.kind not in STAY]
        best = sum(min(operator.seconds, operator.ceiling_seconds or 0.0) for operator in fused)
        best += whole - sum(operator.seconds for operator in fused)
        share = best / whole * busy_share(case)
        if case.device == "cpu":  # what an operator costs next to its own seconds is Python's and autograd's
            simulation, passes = case.pipeline.round.simulation, sum(seconds_of(case, name) for name in COMPUTE)
            whole_step = best * (simulation.accumulation if simulation is not None else 1)  # not one micro-batch alone
            share = min(1.0, whole_step / max(passes, 1e-12))
        calls = sum(operator.calls or 1 for operator in found)
        stay = calls - sum(operator.calls or 1 for operator in fused)
        left = 0.0 if setting["mode"] == "reduce-overhead" else min(1.0, 2.0 * stay / calls)
        most = self._gain(case, share, left)
        likely = self._gain(case, (1.0 + share) / 2, (1.0 + left) / 2)
        if most is None or likely is None:
            return None
        value = max(1.0, likely.value)
        step = declared(ranged(likely, value, min(1.0, likely.low), max(most.high, value)))
        seconds = self.once_seconds(case, setting)
        return after_paying(case, step, seconds, least=seconds / 2)

    def once_seconds(self, case: Case, setting: Setting) -> float:
        """Of a compilation that finds nothing cached."""
        modules = case.workload.model.modules
        leaves = 0.0 + sum(count for kind, count in modules.items() if kind not in CONTAINERS)
        if setting.get("regional"):  # a block that repeats is compiled once
            leaves /= max(1, len(case.workload.model.repeated_blocks))
        return (AUTOTUNED if setting.get("mode") == AUTOTUNE else 1.0) * (FIRST + EACH * leaves)

    def settings(self, case: Case) -> Settings:
        shapes = {"dynamic": True} if case.workload.static_shapes is False else {}
        whole: Setting = {"mode": "default", **shapes}
        found = [whole]
        if len(case.workload.model.repeated_blocks) > 2:
            sites = case.sites.of("model") if case.sites is not None else ()
            torchs = {"torchs": True} if any(site.options.get("torchs_blocks") for site in sites) else {}
            # The modules that hold them: ``layers`` of ``layers.0`` and ``layers.1``.
            blocks = list(dict.fromkeys(name.rpartition(".")[0] for name in case.workload.model.repeated_blocks))
            found.insert(0, {**whole, "regional": True, "blocks": blocks, **torchs})
        if case.device == "cuda" and case.workload.static_shapes is not False:
            found.append({"mode": "reduce-overhead"})
        tuned: Setting = {"mode": AUTOTUNE, **shapes}
        seconds = self.once_seconds(case, tuned)
        step = case.pipeline.step_seconds if case.pipeline is not None else 0.0
        if (case.planned_steps or 0) * step > PAYS * seconds and (case.seconds_left or 0.0) > TRIED * seconds:
            found.append(tuned)
        for setting in found:
            trial = yield setting
            if trial is not None and any(words in trial.reason for words in NO_TOOLS):
                return  # no other mode has what this one lacked
            if kept(trial) and not setting.get("regional"):
                yield {**setting, "loss": True}
            if trial is not None and STORM in trial.reason and not setting.get("dynamic"):
                yield {**setting, "dynamic": True}

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        mode = None if setting["mode"] == "default" else setting["mode"]
        dynamic = setting.get("dynamic")
        setup = setup.with_compile(mode=mode, dynamic=dynamic, regional=bool(setting.get("regional", False)))
        return setup.with_loss(Wrap.of(compiled_loss, mode=mode, dynamic=dynamic)) if setting.get("loss") else setup

    def recipe(self, setting: Setting) -> Recipe:
        options = [] if setting["mode"] == "default" else [f'mode="{setting["mode"]}"']
        options += ["dynamic=True"] if setting.get("dynamic") else []
        more = "".join(f", {option}" for option in options)
        edits: tuple[Edit, ...] = ()
        line = f"model = torch.compile(model{more})"
        if setting.get("regional"):
            torchs = setting.get("torchs")  # Module.compile does nothing for a class of torch's own
            each = f"compile_in_place(block{more})" if torchs else f"block.compile({', '.join(options)})"
            loops = []
            for path in setting.get("blocks") or ["layers"]:  # as code behind the model's name: .encoder[0].layers
                within = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)
                loops.append(f"for block in {{model}}{within}:\n    {each}")
            line = "\n".join(loops).replace("{model}", "model")
            parts = ("autoopt.benchmark.compiling:compile_in_place",) if torchs else ()
            edits = (Edit("model", lines=tuple(loops), parts=parts),) if setting.get("blocks") else ()
        if setting.get("loss"):
            line += f"\nloss = torch.compile(lambda batch: criterion(model(batch[0]), batch[1]){more})"
        dynamo: Setting = {"dynamo_backend": "INDUCTOR", "dynamo_mode": setting["mode"]}
        dynamo |= {"dynamo_use_dynamic": True} if setting.get("dynamic") else {}
        dynamo |= {"dynamo_use_regional_compilation": True} if setting.get("regional") else {}
        return Recipe(
            pytorch=line,
            lightning={"_note": f"module = torch.compile(module{more}) before fit"},
            transformers={"torch_compile": True, "torch_compile_mode": setting["mode"]},
            accelerate={"dynamo_config": dynamo},
            edits=edits,
        )

    def _gain(self, case: Case, share: float, left: float) -> Estimate | None:
        """Forward and backward at this share of their seconds, issued in this share of the host's."""
        seconds = {name: seconds_of(case, name) * share for name in COMPUTE}
        return gain(case, {**seconds, **issued(case, passes=left)})
