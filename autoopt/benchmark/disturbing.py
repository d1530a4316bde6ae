"""Weights that begin a rounding apart: what another seed is to a script that sets its own, and what rounding may do.

Trainings of such a script are alike, so that they tell nothing of how far chance takes them. A change of the first
weights as small as what an arithmetic rounds off is one that no training may depend on; how far it takes a training is
what rounding may.
"""

from __future__ import annotations

import torch
from torch import nn

from autoopt.benchmark.seeding import mix


def disturb(model: nn.Module, size: float, seed: int, number: int) -> None:
    """Changes the parameters of a model in place, the same in every process with this seed.

    Args:
        size: standard deviation of a change, over its weight.
        seed: of the trial.
        number: of the model among those of the script.
    """
    generator = torch.Generator().manual_seed(mix(seed, "disturbed", number))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.mul_((1 + size * drawn).to(parameter.device, parameter.dtype))
