"""States that are shared out between processes: an optimizer's (ZeRO), and with them the parameters (FSDP2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autoopt.errors import WorkloadError

Factory = Callable[[Any], torch.optim.Optimizer]


def sharded(factory: Factory) -> Factory:
    """The user's factory; of what it makes each process keeps the states of its own share of the parameters."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what it imports here
        from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(params: Any) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(_groups(factory, params), optimizer_class=_Users(factory))  # type: ignore[arg-type]

    return make


class _Users:
    """The user's factory in place of an optimizer's class, called with this process's share of each group."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self.__name__ = "users_optimizer"

    def __call__(self, params: Any, **defaults: Any) -> torch.optim.Optimizer:
        return self._factory(params)


def _groups(factory: Factory, params: Any) -> Any:
    """The parameters as they are given to the optimizer of all processes.

    Raises:
        WorkloadError: the optimizer has several groups of its own making.
    """
    groups = factory(params).param_groups
    if len(groups) > 1:
        raise WorkloadError(f"the optimizer makes {len(groups)} groups of parameters itself; one is shared out")
    return groups[0]["params"]


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """States of a model that is shared out and of its optimizer, whole in the first process; all call this."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: tuple[dict[str, Any], dict[str, Any]] = get_state_dict(model, optimizer, options=options)
    return found


def load_whole_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, states: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Puts whole states into a model that is shared out; every process has them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)
