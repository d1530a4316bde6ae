"""Checkpoints that are never half written and hold plain data and tensors alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoopt.errors import DocumentError, EnvironmentLacks
from autoopt.records import JsonDict, Plan

_ARRAY = "numpy array"


def write_checkpoint(path: Path, state: JsonDict) -> None:
    """Writes a checkpoint: a reader finds the old one or the new one, never a part.

    Raises:
        EnvironmentLacks: it cannot be written there.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save(_plain(state), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentLacks(f"cannot write the checkpoint {path}: {error.strerror or error}") from None


def read_checkpoint(path: Path) -> JsonDict:
    """Reads a checkpoint; nothing in it is executed (``weights_only``).

    Raises:
        DocumentError: it cannot be read, or is none of ours.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DocumentError(
            f"cannot read the checkpoint {path}: {first[0]}", hint="delete it to begin from the first step"
        ) from None
    if not isinstance(state, dict) or "training" not in state:
        raise DocumentError(f"{path} is no checkpoint of autoopt train", hint="give another --out")
    found: JsonDict = _restored(state)
    return found


def check_same(path: Path, state: JsonDict, *, spec: str, plan: Plan, seed: int) -> None:
    """Refuses a checkpoint of another run.

    Raises:
        DocumentError: another workload, plan or seed.
    """
    wanted = {"workload": spec, "plan": plan.model_dump_json(), "seed": seed}
    for name, value in wanted.items():
        if state[name] != value:
            raise DocumentError(
                f"the checkpoint {path} is of another {name}: {state[name]}, this run has {value}",
                hint="give another --out, or delete it to begin from the first step",
            )


def _plain(value: Any) -> Any:
    """Arrays of NumPy as tensors, its numbers as numbers: all else would have to be unpickled as code."""
    if isinstance(value, np.ndarray):
        return {_ARRAY: str(value.dtype), "values": torch.from_numpy(value.astype(np.int64))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value) if type(value) in (list, tuple) else value
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return value["values"].numpy().astype(value[_ARRAY])
        return {key: _restored(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_restored(item) for item in value)
    return value
