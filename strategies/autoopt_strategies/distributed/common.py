"""Questions that strategies of several processes ask of a case."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case


def processes(case: Case) -> int:
    """Processes that the incumbent trains in."""
    return case.setup.distributed.processes


def replicated(case: Case) -> Applies:
    """Yes where the incumbent trains in several processes, each with the whole model."""
    if case.workload.processes > 1 and case.workload.wrapped is None:
        return Applies.no("the script makes no DistributedDataParallel, whose arguments could be changed")
    if case.workload.wrapped is not None:
        return Applies.yes()
    if processes(case) < 2:
        return Applies.no("training is in one process, which has nobody to send gradients to")
    if case.setup.distributed.fully_sharded is not None:
        return Applies.no("parameters are shared out between the processes, which send them in another way")
    return Applies.yes()


def wrapped(case: Case, option: str) -> Any:
    """An argument of the ``DistributedDataParallel`` that a script makes by itself; None where it makes none."""
    return None if case.workload.wrapped is None else case.workload.wrapped.get(option)


def described(case: Case) -> Applies:
    """No where a script's own lines make the processes and what they share out."""
    if case.workload.processes > 1:
        return Applies.no("the script's own lines say what its processes share out: it needs build()")
    return Applies.yes()


def gradient_bytes(case: Case) -> int:
    """Bytes of the gradients that each process sends in a step."""
    model = case.workload.model
    each = model.parameter_bytes / model.parameters if model.parameters else 4.0
    share = model.trainable_parameters / model.parameters if model.parameters else 1.0
    return int((case.workload.parameters or 0) * share * each)
