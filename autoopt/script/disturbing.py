"""Weights that begin a rounding apart: what another seed is to a script that sets its own.

Trainings of such a script are alike, so that they tell nothing of how far chance takes them. A change of the first
weights as small as what bfloat16 rounds off is one that no training may depend on; how far it takes a training is
what rounding may.
"""

from __future__ import annotations

import torch
from torch import nn

from autoopt.benchmark.seeding import mix

SIZE = 2.0**-8
"""Standard deviation, over each weight."""


def disturb(model: nn.Module, seed: int, number: int) -> None:
    """Changes the parameters of a model in place, the same in every process with this seed.

    Args:
        seed: of the trial.
        number: of the model among those of the script.
    """
    generator = torch.Generator().manual_seed(mix(seed, "disturbed", number))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.mul_((1 + SIZE * drawn).to(parameter.device, parameter.dtype))
