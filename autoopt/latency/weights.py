"""A trained model's weights from a file; nothing in it is executed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autoopt.errors import DocumentError, UsageError

PLACES = (("training", "model"), ("state_dict",), ("model_state_dict",), ("model",), ())
"""Where weights stand in checkpoints: autoopt train's, Lightning's, many a loop's, and a bare state_dict."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads weights into a model, all of them by name.

    Raises:
        UsageError: no such file.
        DocumentError: it holds no weights of this model.
    """
    state = read_weights(path)
    wanted = set(model.state_dict())
    state = {_plain(name): value for name, value in state.items()}
    if not wanted & set(state):  # Lightning's modules hold the model below a name of their own
        state = {name.partition(".")[2]: value for name, value in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise DocumentError(
            f"{path} holds weights of another model: {first}",
            hint="of a model that a plan has changed (pruning, LoRA, distillation): "
            "docs/how-to/change-the-model.md, Serve the new model",
        ) from None


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint, by name.

    Raises:
        UsageError: no such file.
        DocumentError: it cannot be read without executing code, or holds none.
    """
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}", hint="such as autoopt-runs/train/checkpoint.pt")
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        raise DocumentError(
            f"cannot read the checkpoint {path}: {_reason(error, path)}",
            hint="save it with torch.save(model.state_dict(), path)",
        ) from None
    for place in PLACES:
        state = found
        for key in place:
            state = state.get(key) if isinstance(state, Mapping) else None
        if isinstance(state, Mapping) and state and all(isinstance(v, torch.Tensor) for v in state.values()):
            return dict(state)
    raise DocumentError(f"{path} holds no weights", hint="save it with torch.save(model.state_dict(), path)")


def _reason(error: Exception, path: Path) -> str:
    """Why torch does not read a file, in words; its own speak of its options, or are a byte."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
        return "it holds more than tensors, such as a pickled model, and reading that would execute code"
    return "it is not a whole file of torch.save"


def _plain(name: str) -> str:
    return name.removeprefix("_orig_mod.").removeprefix("module.")
