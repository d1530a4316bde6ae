"""A model in several processes: replicated with averaged gradients (DDP), or shared out between them (FSDP2, ZeRO)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autoopt.benchmark.compiling import repeated_blocks
from autoopt.errors import WorkloadError
from autoopt.setup import Distributed

Factory = Callable[[Any], torch.optim.Optimizer]


def sharded(factory: Factory) -> Factory:
    """The user's factory; of what it makes each process keeps the states of its own share of the parameters.

    Raises:
        WorkloadError: later, where the optimizer has several groups of its own making.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what it imports here
        from torch.distributed.optim import ZeroRedundancyOptimizer

    def of_own_share(params: Any, **defaults: Any) -> torch.optim.Optimizer:
        return factory(params)

    def make(params: Any) -> torch.optim.Optimizer:
        groups = factory(params).param_groups
        if len(groups) > 1:
            raise WorkloadError(f"the optimizer makes {len(groups)} groups of parameters itself; one is shared out")
        # torch calls the class with this process's share of the group
        return ZeroRedundancyOptimizer(groups[0]["params"], optimizer_class=of_own_share)  # type: ignore[arg-type]

    return make


class Replicated(DistributedDataParallel):
    """DistributedDataParallel that has the attributes of the model in it, which a loss may read."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def shared_out(model: nn.Module, how: Distributed) -> nn.Module:
    """The model with its parameters shared out between the processes, before its optimizer is made.

    Each repeated block is gathered and let go of by itself, then what is left.
    """
    wanted = how.fully_sharded
    if how.processes == 1 or wanted is None:
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, wanted.dtype) if wanted.dtype else None)
    for name in repeated_blocks(model):
        fully_shard(model.get_submodule(name), mp_policy=policy, reshard_after_forward=wanted.reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=wanted.reshard)
    return model


def options_of(model: nn.Module) -> dict[str, Any] | None:
    """The arguments that a ``DistributedDataParallel`` was made with; None of any other module."""
    if not isinstance(model, DistributedDataParallel):
        return None
    return {
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
    }


def compress(model: DistributedDataParallel) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model.register_comm_hook(None, bf16_compress_hook)


def replicate(model: nn.Module, how: Distributed, device: torch.device) -> nn.Module:
    """The model as the steps call it: its gradients are the mean over the processes."""
    if how.processes == 1 or how.fully_sharded or isinstance(model, DistributedDataParallel):
        return model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    replicated = Replicated(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        **{"find_unused_parameters": how.find_unused, **how.arguments},
    )
    if how.compression == "bfloat16":
        compress(replicated)
    return replicated
