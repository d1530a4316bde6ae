"""The real training run with a plan: checkpoints, resume, early stop at the target."""

from __future__ import annotations

from autoopt.train.run import Trained, train_run

__all__ = ["Trained", "train_run"]
