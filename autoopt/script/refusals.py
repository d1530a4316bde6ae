"""Scripts that cannot be measured from outside, told at the line where that shows."""

from __future__ import annotations

import functools
from typing import Any

import torch

from autoopt.errors import WorkloadError

_HINT = "name a command that trains in one process, or describe the run with build()"


def refuse_processes() -> None:
    """From now on a script that starts training processes of its own is stopped there.

    They could not be stopped at the same step from outside.
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
            if torch.distributed.get_world_size() > 1:
                _refuse()
            return done

        torch.distributed.init_process_group = init_process_group


def _refuse(*_: Any, **__: Any) -> None:
    raise WorkloadError("the script trains in several processes, which it starts itself", hint=_HINT)
