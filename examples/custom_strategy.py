"""A strategy of one's own: class labels smoothed a little, written and tested as the guide tells.

autoopt optimize examples/digits.py:build --budget 5m --strategies examples.custom_strategy:LabelSmoothing
"""

from dataclasses import dataclass

import torch.nn.functional as F

from autoopt import Applies, Recipe, Risk, Strategy


@dataclass(frozen=True)
class Smoothed:
    """``loss -> loss`` in which cross-entropy smooths its labels while the model trains."""

    amount: float

    def __call__(self, loss):
        def smoothed(model, batch):
            plain = F.cross_entropy

            def cross_entropy(*args, **kwargs):
                return plain(*args, **{"label_smoothing": self.amount, **kwargs})

            if not model.training:
                return loss(model, batch)
            F.cross_entropy = cross_entropy
            try:
                return loss(model, batch)
            finally:
                F.cross_entropy = plain

        return smoothed


class LabelSmoothing(Strategy):
    """Smooths class labels, so that a model is not asked for certainty.

    What it does: passes ``label_smoothing`` to the cross-entropy of the loss.
    When it helps: a classifier that overfits reaches its validation target in fewer steps.
    When it does not: few steps, noisy classes; the step itself gets no faster.
    What it costs: probabilities that are less sharp.
    Source: Szegedy et al., "Rethinking the Inception architecture", CVPR 2016
    """

    name = "label_smoothing"
    title = "label smoothing"
    stages = frozenset({"forward"})
    risk = Risk.TRAINING

    def applies(self, case):
        if "int64" not in {tensor.dtype for tensor in case.workload.batch[1:]}:
            return Applies.no("batches hold no class labels")
        return Applies.yes()

    def settings(self, case):
        reply = yield {"amount": 0.05}
        if reply is not None and reply.verdict == "kept":
            yield {"amount": 0.1}

    def apply(self, setup, setting):
        return setup.with_loss(Smoothed(setting["amount"]))

    def recipe(self, setting):
        amount = setting["amount"]
        return Recipe(
            pytorch=f"loss = F.cross_entropy(logits, labels, label_smoothing={amount})",
            transformers={"label_smoothing_factor": amount},
        )
