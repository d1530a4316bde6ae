"""Questions that strategies of several processes ask of a case."""

from __future__ import annotations

from autoopt import Applies, Case


def processes(case: Case) -> int:
    """Processes that the incumbent trains in."""
    return case.setup.distributed.processes


def replicated(case: Case) -> Applies:
    """Yes where the incumbent trains in several processes, each with the whole model."""
    if processes(case) < 2:
        return Applies.no("training is in one process, which has nobody to send gradients to")
    if case.setup.distributed.fully_sharded is not None:
        return Applies.no("parameters are shared out between the processes, which send them in another way")
    return Applies.yes()


def gradient_bytes(case: Case) -> int:
    """Bytes of the gradients that each process sends in a step."""
    model = case.workload.model
    each = model.parameter_bytes / model.parameters if model.parameters else 4.0
    share = model.trainable_parameters / model.parameters if model.parameters else 1.0
    return int((case.workload.parameters or 0) * share * each)
