"""Why a script cannot be measured, and how its training ended."""

from __future__ import annotations

import functools
from typing import Any

from autoopt.errors import ScriptEnded, WorkloadError

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
    import torch  # here: the thread that waits for the script to import torch has these errors, too

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


def _refuse(*_: Any, **__: Any) -> None:
    raise WorkloadError("the script trains in several processes, which it starts itself", hint=_HINT)


def explained(error: BaseException | None, steps: int = 0) -> BaseException:
    """What those get who wait for a script that has ended after so many training steps, by an error where not None.

    One that leaves by itself once it trains has come to its end, whatever it leaves with; one that leaves before, as it
    does over unknown words, or asks its user for something, gets a message.
    """
    if error is None or (isinstance(error, SystemExit) and steps):
        return ScriptEnded(steps)
    if isinstance(error, SystemExit):
        how = error.code if isinstance(error.code, str) else f"exit code {error.code}"
        return WorkloadError(
            f"the script left by itself before its first training step: {how}",
            hint="what it printed last stands below; its own words stand behind --",
        )
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return WorkloadError(
            "the script asks for something on standard input, which is empty while it is measured",
            hint="give the answer as one of its words behind --",
        )
    return error
