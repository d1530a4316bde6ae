"""Device prefetch: the next batch is copied on a stream of its own while the device computes."""

from __future__ import annotations

from autoopt import Applies, Case, Change, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, at_most, gain, kept


class DevicePrefetch(Strategy):
    """Copies batches ahead on a side stream.

    No run and no benchmark has kept it so far.

    What it does: keeps one or two batches on the device before they are needed.
    When it helps: the copy is seen in the step although batches are pinned.
    When it does not: on the CPU; where the copy is short against the step; where the loader is what is slow.
    What it costs: the memory of the batches ahead.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    name = "device_prefetch"
    title = "batches copied ahead"
    stages = frozenset({"copy"})
    risk = Risk.EXACT
    switchable = True
    after = frozenset({"pin_memory"})
    example = Example({"prefetch": 2}, device="cuda:0")

    def applies(self, case: Case) -> Applies:
        if case.device != "cuda":
            return Applies.no(f"copies during the computation need CUDA streams; the device is {case.device}")
        if not case.workload.batch_bytes:
            return Applies.no("batches hold no tensors that could be copied ahead")
        if case.workload.unmoved:
            return Applies.no(f"a {case.workload.unmoved} of the batch has no to(device), by which it could be copied")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return at_most(gain(case, {"copy": 0.0}))

    def settings(self, case: Case) -> Settings:
        if kept((yield {"prefetch": 1})):
            yield {"prefetch": 2}

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """A copy from pageable memory waits, whatever its stream."""
        if case.loader_option("pin_memory"):
            return []
        return [Change(strategy="pin_memory", setting={"pin_memory": True, "non_blocking": True})]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_transfer(prefetch=setting["prefetch"], non_blocking=True)

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            "side = torch.cuda.Stream()\nwith torch.cuda.stream(side):\n"
            "    ahead = next(batches).to(device, non_blocking=True)\n"
            "torch.cuda.current_stream().wait_stream(side)"
        )
        return Recipe(pytorch=code)
