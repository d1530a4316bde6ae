"""Distillation: a narrower student learns from the labels and from what the trained model says."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_model.pruning import narrowed, narrowing, to_users_model
from autoopt_strategies.trying import Setting, Settings, more_or_less

RATIOS = (0.5, 0.7, 0.3)
WEIGHT, TEMPERATURE = 0.5, 2.0


def student_of(model: Any, ratio: float, inputs: Any) -> Any:
    """The model with a part of its channels, which hears the whole one while it trains.

    Args:
        ratio, inputs: see :func:`autoopt_model.pruning.narrowed`.
    """
    return with_teacher(narrowed(copy.deepcopy(model), ratio, inputs), model)


def with_teacher(student: Any, teacher: Any) -> Any:
    """A module that answers as the student and, in training, keeps what both say of the same inputs."""
    import torch
    from torch import nn

    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = student
            self.unregistered = [teacher.eval()]  # neither trained, nor saved with the student
            self.said: Any = None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            answer = self.student(*args, **kwargs)
            if self.training:
                with torch.no_grad():
                    self.said = (answer, self.unregistered[0](*args, **kwargs))
            return answer

    return Taught()


def towards_teacher(
    loss: Callable[[Any, Any], Any], weight: float = WEIGHT, temperature: float = TEMPERATURE
) -> Callable[[Any, Any], Any]:
    """The loss with a share for the distance of the student's softened answers from the teacher's.

    Args:
        weight: of the teacher; the labels have the rest.
        temperature: by which logits are divided before they are compared.
    """
    import torch
    import torch.nn.functional as F

    def distilled(model: Any, batch: Any) -> Any:
        value = loss(model, batch)
        taught = next((module for module in model.modules() if hasattr(module, "unregistered")), None)
        if taught is None or taught.said is None:
            return value
        student, teacher = (  # logits, or an answer with more to it
            F.log_softmax((answer if isinstance(answer, torch.Tensor) else answer.logits) / temperature, -1)
            for answer in taught.said
        )
        taught.said = None
        near = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1).mean() * temperature**2
        return (1 - weight) * value + weight * near

    return distilled


class Distillation(Strategy):
    """Trains a narrower student towards the trained model that ``build()`` gives.

    What it does: a copy of the model with fewer channels is trained on a mixture of your loss and the divergence of
        its softened answers from the model's own. Each step runs teacher and student, what comes after the student.
    When it helps: the model is trained already and must become smaller, or quicker to serve (``autoopt latency
        --student``).
    When it does not: ``build()`` gives untrained weights, from which nothing can be learnt: then it does not apply.
        The time to target that it is judged by includes the teacher's forward, so that it often loses there.
    What it costs: another model is learnt, so that it is trained to the target, with more than one seed.
        ``torch-autoopt[model]`` brings torch-pruning, which narrows it.
    Source: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015
    """

    name = "distillation"
    title = "distillation to a narrower student"
    stages = frozenset({"backward", "optimizer", "evaluate"})
    risk = Risk.MODEL
    after = frozenset({"freezing"})  # the student is made of the frozen model
    example = Example(
        {"ratio": 0.5, "inputs": [[[2, 3, 8, 8], "float32"]], "weight": 0.5, "temperature": 2.0},
        inspected={"inputs": [[[2, 3, 8, 8], "float32"]]},
        losses=None,
        trains=importlib.util.find_spec("torch_pruning") is not None,
    )

    def applies(self, case: Case) -> Applies:
        return to_users_model(case, self.name, "whether build() gives a trained model is not known")

    def settings(self, case: Case) -> Settings:
        inputs = case.inspected(self.name)["inputs"]
        fixed = {"inputs": inputs, "weight": WEIGHT, "temperature": TEMPERATURE}
        return more_or_less(*({"ratio": ratio, **fixed} for ratio in RATIOS))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        student = Wrap.of(student_of, ratio=setting["ratio"], inputs=setting["inputs"])
        loss = Wrap.of(towards_teacher, weight=setting["weight"], temperature=setting["temperature"])
        return setup.with_model(student).with_loss(loss)

    def recipe(self, setting: Setting) -> Recipe:
        t, weight = setting["temperature"], setting["weight"]
        code = (
            f"student = a copy of the model with {100 * setting['ratio']:g} % of its channels removed (torch-pruning)\n"
            f"near = F.kl_div(F.log_softmax(student(x) / {t:g}, -1), F.log_softmax(teacher(x) / {t:g}, -1),\n"
            f"                log_target=True, reduction='batchmean') * {t:g} ** 2\n"
            f"loss = {1 - weight:g} * loss + {weight:g} * near"
        )
        return Recipe.noted(code)

    def inspect(self, live: Any) -> Setting:
        """Whether a narrowed copy answers, and the model that ``build()`` gives reaches the target untrained."""
        found = narrowing(live.training)
        if "inputs" not in found:
            return found
        target, workload = live.target, live.workload
        if target is None or workload.target is None or workload.evaluate is None:
            return {"reason": "without a target's value it is not known whether build() gives a trained model"}
        metric = live.from_start().evaluate()[workload.target.metric]
        reached = metric >= target if workload.target.direction == "max" else metric <= target
        if not reached:
            return {"reason": f"build() gives a model that is not trained: {workload.target.metric} {metric:.4g}"}
        return found
