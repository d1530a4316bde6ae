"""Scripts that cannot be measured from outside, told at the line where that shows."""

from __future__ import annotations

import functools
from typing import Any

import torch

from autoopt.errors import WorkloadError

_HINT = (
    "let torchrun start them, as in: autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py; "
    "else name a command that trains in one process, or describe the run with build()"
)


def refuse_processes(size: int = 1) -> None:
    """From now on a script that starts training processes of its own is stopped there.

    They could not be stopped at the same step from outside.

    Args:
        size: processes that a launcher has started it in.
    """
    for module, name in ((torch.multiprocessing, "spawn"), (torch.multiprocessing, "start_processes")):
        plain = getattr(module, name, None)
        if plain is not None:
            setattr(module, name, functools.wraps(plain)(_refuse))
    if torch.distributed.is_available():
        begin = torch.distributed.init_process_group

        @functools.wraps(begin)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            done = begin(*args, **kwargs)
            if torch.distributed.get_world_size() != size and torch.distributed.get_world_size() > 1:
                _refuse()
            return done

        torch.distributed.init_process_group = init_process_group


def no_optimizer(calls: int) -> WorkloadError:
    """The refusal of a script that trains without an optimizer of torch.

    Args:
        calls: of a model in training that were seen until now.
    """
    return WorkloadError(
        f"a model was called {calls} times in training, and no optimizer of torch was made: where lines of its own "
        "update the weights, the end of a step cannot be seen",
        hint="let a torch.optim.Optimizer make the updates, or describe the run with build()",
    )


def no_model(steps: int) -> WorkloadError:
    """The refusal of a script whose optimizer steps without a model that could be found.

    Args:
        steps: of the optimizer that were seen until now.
    """
    return WorkloadError(
        f"the optimizer has stepped {steps} times, and no model that holds its parameters was called with gradients on",
        hint="call the model itself, as in model(x), rather than one of its methods, or describe the run with build()",
    )


def shared_out() -> WorkloadError:
    """The refusal of a script of several processes none of which has all weights."""
    return WorkloadError(
        "the script shares its parameters out between its processes (FSDP), so that none has the weights whose "
        "gradients are compared",
        hint="describe the run with build(): autoopt optimize MODULE:ATTR --nproc N, where fully_sharded is a change",
    )


def _refuse(*_: Any, **__: Any) -> None:
    raise WorkloadError("the script trains in several processes, which it starts itself", hint=_HINT)
