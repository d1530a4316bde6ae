"""A whole training step recorded as one CUDA graph: forward, backward, clipping, optimizer, by one launch.

What a graph holds is fixed: shapes, addresses, and every number that Python put into a kernel's arguments.
So a replay happens only where all of that is as it was recorded; other batches (a short last one) and other
options of the optimizer run as before. The learning rate is the one number that may move: where the
optimizer can read it from the device, the recorded step does, and it is written there when it changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_unflatten

from autoopt_strategies.compute.fused_optimizer import rebuilt

Step = Callable[[list[Any]], torch.Tensor]
Run = Callable[[], torch.Tensor]


def recorded(step: Step) -> Step:
    """``step -> step`` that is recorded after three that also make the optimizer's state, which a graph must find."""
    return RecordedStep(step, 3, CudaRecorder())


class CudaRecorder:
    """Warms up, records and replays on the device; tests put another in its place."""

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def warm(self, run: Run) -> torch.Tensor:
        """Runs on a stream of its own, as what is going to be recorded must have been."""
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            loss = run()
        here.wait_stream(side)
        return loss

    def record(self, run: Run) -> Run:
        """``run`` as a function that replays it; recording itself trains nothing."""
        graph = torch.cuda.CUDAGraph()
        # A loader's thread may pin memory in the meantime: only calls of this thread can spoil the recording.
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                loss = run()
        except RuntimeError as error:
            why = str(error).partition("\n")[0].removeprefix("CUDA error: ")
            raise RuntimeError(f"this step cannot be recorded as one CUDA graph: {why}") from None

        def replay() -> torch.Tensor:
            graph.replay()
            return loss.clone()  # the next replay writes to the same place

        return replay


class RecordedStep:
    """A step that replays itself where it can.

    Args:
        step: one whole training step; it must not wait for the device, nor depend on Python that changes.
        warm_up: steps before recording.
        recorder: the device's.
    """

    def __init__(self, step: Step, warm_up: int, recorder: CudaRecorder) -> None:
        self._step, self._left, self._recorder = step, warm_up, recorder
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._shapes: Any = None
        self._numbers: list[dict[str, Any]] = []
        self._anchors: list[weakref.ref[torch.Tensor]] = []
        self._places: list[torch.Tensor] = []
        self._rates: list[tuple[dict[str, Any], torch.Tensor]] = []
        self._written: list[float] = []
        self._replay: Run | None = None

    def __call__(self, batches: list[Any]) -> torch.Tensor:
        leaves, structure = tree_flatten(batches)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or not all(self._recorder.takes(tensor) for tensor in tensors):
            return self._step(batches)
        # what a recording holds: of a tensor its kind, of anything else its value
        kinds = [(tuple(t.shape), t.dtype, t.device, t.stride()) for t in tensors]
        shapes = (str(structure), kinds, [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        if self._left:
            self._left -= 1
            self._shapes = self._shapes or shapes  # those of the first; a last one may be short
            stepping = self._optimizers
            handle = register_optimizer_step_pre_hook(lambda each, *_: stepping.update({id(each): each}))
            try:
                return self._recorder.warm(lambda: self._step(batches))
            finally:
                handle.remove()
        if shapes != self._shapes:
            return self._step(batches)
        if self._replay is None or not all(anchor() is not None for anchor in self._anchors):
            self._record(leaves, structure)
        elif self._numbers != self._numbers_now():
            return self._step(batches)  # another number of the optimizer's, such as a momentum that cycles
        for place, tensor in zip(self._places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        for number, (group, rate) in enumerate(self._rates):
            if group["lr"] != self._written[number]:
                self._written[number] = group["lr"]
                rate.fill_(group["lr"])
        assert self._replay is not None
        return self._replay()

    def _record(self, leaves: list[Any], structure: Any) -> None:
        static = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [leaf for leaf in static if isinstance(leaf, torch.Tensor)]
        self._rates = [
            (group, torch.tensor(float(group["lr"]), device=self._places[0].device))
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            if _reads_rate(group) and not isinstance(group["lr"], torch.Tensor)
        ]
        self._written = [float(group["lr"]) for group, _ in self._rates]
        self._numbers = self._numbers_now()
        # A loaded checkpoint brings other tensors of state; those that the graph updates are gone then.
        self._anchors = [weakref.ref(tensor) for optimizer in self._optimizers.values() for tensor in _state(optimizer)]
        self._replay = None  # what an earlier graph held is free before another takes as much
        batches = tree_unflatten(static, structure)

        def run() -> torch.Tensor:
            """While it is recorded, the optimizer finds its learning rate on the device."""
            before = [group["lr"] for group, _ in self._rates]
            for group, rate in self._rates:
                group["lr"] = rate
            try:
                return self._step(batches)
            finally:
                for (group, _), known in zip(self._rates, before, strict=True):
                    group["lr"] = known

        self._replay = self._recorder.record(run)

    def _numbers_now(self) -> list[dict[str, Any]]:
        """The options of the optimizers that a graph holds as numbers."""
        return [
            {
                name: value
                for name, value in group.items()
                if name != "params"
                and not (name == "lr" and _reads_rate(group))
                and not isinstance(value, torch.Tensor)
            }
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
        ]


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """One tensor of its state; none where it has no state."""
    found = (value for state in optimizer.state.values() for value in state.values())
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)][:1]


def _reads_rate(group: dict[str, Any]) -> bool:
    """Whether an update can take its learning rate from the device."""
    return bool(group.get("capturable") or group.get("fused"))


def recordable(optimizer: Any) -> Any:
    """The same optimizer, which keeps on the device what it counts, so that its step can be recorded."""
    if "capturable" not in optimizer.defaults:
        return rebuilt(optimizer, fused=True, foreach=False)  # SGD takes its rate from the device so
    if not all(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
        return optimizer  # a plan of another machine's, tried out on a CPU: nothing is recorded there
    return rebuilt(optimizer, capturable=True)
