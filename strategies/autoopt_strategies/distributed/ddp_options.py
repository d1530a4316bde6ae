"""DDP options: how processes that each hold the whole model send their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.distributed.ddp import described, gradient_bytes, replicated, wrapped
from autoopt_strategies.predictions import at_most, batch_now, gain, guessed, seconds_of
from autoopt_strategies.trying import Setting, Settings, kept

USUAL = 25.0
"""Megabytes of a bucket that torch begins with."""
HOOK = "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook"
WORDS = {"bucket_view": "gradient_as_bucket_view", "static_graph": "static_graph", "bucket_megabytes": "bucket_cap_mb"}
"""Arguments of ``DistributedDataParallel``."""


class DdpOptions(Strategy):
    """Sends gradients between processes in another way.

    No run and no benchmark has kept it so far.

    What it does: ``bucket_view`` lets gradients lie in the buckets that are sent, ``static_graph`` says that the graph
        never changes, ``bucket_megabytes`` is how much is sent at once, ``compression`` sends bfloat16,
        ``quiet_accumulation`` sends once a step, not once a micro-batch (``no_sync``). What is kept of one stays next
        to the next.
    When it helps: large models, whose gradients take long to copy or to send; parameters without a gradient that are
        searched for in every step; accumulation over several micro-batches; a slow link.
    When it does not: a small model, whose gradients are sent at once; a fast link. Between processes of a CPU torch has
        no hook for bfloat16.
    What it costs: gradients cannot be detached in place; a graph that does change fails with an error; sums are taken
        in another order; compressed, gradients are rounded to 8 bits of mantissa before they are summed.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html;
        https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    """

    name = "ddp_options"
    title = "gradients sent otherwise"
    stages = frozenset({"backward", "communication"})
    risk = Risk.NUMERIC
    after = frozenset({"ddp", "accumulation"})
    example = Example(
        {"bucket_view": True},
        setup=Setup().with_distributed(processes=2),
        facts={"parameters": 50_000_000},
        processes=2,
        trains=False,
    )

    def applies(self, case: Case) -> Applies:
        if not (able := replicated(case)):
            return able
        found = dict(_options(case))
        if any(isinstance(each, list) for each in found.values()):
            return Applies.yes()
        return Applies.no("; ".join(f"{name}: {reason}" for name, reason in found.items()))

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Communication at the very best; two copies of the gradients less; nobody knows what a search costs."""
        sent, backward = seconds_of(case, "communication"), seconds_of(case, "backward")
        if "bucket_megabytes" in setting:
            return at_most(gain(case, {"communication": 0.0}))  # all of it hidden behind the backward pass
        if setting.get("compression"):
            return at_most(gain(case, {"communication": sent / 2}))
        if setting.get("quiet_accumulation"):
            return at_most(gain(case, {"communication": sent / batch_now(case)[1]}))
        rate = case.environment.peaks.memory_bytes_per_second
        if setting.get("static_graph") or rate is None or not backward:
            return guessed(0.98, 1.1)
        found = gain(case, {"backward": backward - min(4 * gradient_bytes(case) / rate, 0.9 * backward)})
        return None if found is None else guessed(0.98, found.high, found.value)

    def settings(self, case: Case) -> Settings:
        """One option after the other, next to what was kept of those before it."""
        best: Setting = {}
        for name, values in _options(case):
            for value in values if isinstance(values, list) else ():
                if name == "quiet_accumulation" and best.get("static_graph"):
                    break  # the graph is learnt from a first micro-batch that is sent
                if kept((yield {**best, name: value})):
                    best[name] = value
                    break

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """The second copy of the gradients."""
        return [(0.0, {"bucket_view": True})] if replicated(case) else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        found = {"find_unused": False} if setting.get("static_graph") else {}
        return setup.with_distributed(**setting, **found)

    def recipe(self, setting: Setting) -> Recipe:
        arguments = ", ".join(f"{WORDS[name]}={value}" for name, value in setting.items() if name in WORDS)
        lines = [f"model = DistributedDataParallel(model, {arguments})"] if arguments else []
        if setting.get("compression"):
            lines += [HOOK, "model.register_comm_hook(None, bf16_compress_hook)"]
        if setting.get("quiet_accumulation"):
            lines += ["with model.no_sync():  # around all micro-batches of a step but the last"]
        transformers: dict[str, Any] = {}
        if "bucket_megabytes" in setting:
            transformers["ddp_bucket_cap_mb"] = int(setting["bucket_megabytes"])
        if setting.get("static_graph"):
            transformers["ddp_find_unused_parameters"] = False
        code = "\n".join(lines)
        return Recipe(
            pytorch=code,
            lightning={"_note": f"strategy=DDPStrategy({arguments})" if arguments else code},
            transformers=transformers or None,
            accelerate={
                "_note": f"kwargs_handlers=[DistributedDataParallelKwargs({arguments})]" if arguments else code
            },
        )


def _options(case: Case) -> Iterator[tuple[str, list[Any] | str]]:
    """Each option with the values to try, or why there are none."""
    now, facts, yes = case.setup.distributed, case.workload, list[Any]([True])
    there = wrapped(case, "gradient_as_bucket_view") or now.bucket_view
    yield "bucket_view", "gradients are there already" if there else yes
    if now.quiet_accumulation:
        yield "static_graph", "the graph is learnt from the first micro-batch, which sends nothing"
    elif wrapped(case, "static_graph") or now.static_graph:
        yield "static_graph", "it is said already"
    elif not (now.find_unused or wrapped(case, "find_unused_parameters")):
        yield "static_graph", "parameters without a gradient are not searched for, so that nothing is saved"
    else:
        varied = facts.static_shapes is False
        yield "static_graph", "shapes differ from batch to batch, and the graph may differ with them" if varied else yes
    megabytes, size = gradient_bytes(case) / 2**20, now.bucket_megabytes or wrapped(case, "bucket_cap_mb") or USUAL
    few = f"the gradients are {megabytes:.2g} MB, which are sent at once whatever the size"
    # smaller ones begin to send sooner; larger ones use a fast link better
    sizes = [each for each in (size / 4, size * 4) if 0.5 < each < 4 * megabytes]
    yield "bucket_megabytes", few if megabytes < 2 else sizes
    if not (able := described(case)):
        yield "quiet_accumulation", able.reason
    elif now.processes < 2 or batch_now(case)[1] < 2:
        yield "quiet_accumulation", "a step is one micro-batch: its gradients are sent once"
    else:
        learnt = "the graph is learnt from a first micro-batch that is sent (static_graph)"
        yield "quiet_accumulation", learnt if now.static_graph else yes
    if case.device != "cuda":
        yield "compression", f"torch sends bfloat16 through NCCL alone; the device is {case.device}"
    else:
        same = facts.model.dtypes == ("bfloat16",)
        yield "compression", "gradients are bfloat16 already" if same else ["bfloat16"]
