"""Weights of checkpoints as they are found in the wild."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.errors import DocumentError, UsageError
from autoopt.latency.tasks import load_weights


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "form",
    [
        lambda state: state,
        lambda state: {"training": {"model": state, "steps": 3}, "workload": "m:b"},
        lambda state: {"model_state_dict": state, "epoch": 3},
        lambda state: {"state_dict": {f"net.{name}": value for name, value in state.items()}, "epoch": 3},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
        lambda state: {f"module.{name}": value for name, value in state.items()},
    ],
)
def test_forms_of_checkpoints(tmp_path: Path, form: Any) -> None:
    source, target = model(1), model(2)
    torch.save(form(source.state_dict()), tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_what_is_no_checkpoint_of_this_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint"):
        load_weights(model(1), tmp_path / "nowhere.pt")
    (tmp_path / "text.pt").write_text("no")
    with pytest.raises(DocumentError, match="cannot read the checkpoint .*: it is not a whole file of torch.save"):
        load_weights(model(1), tmp_path / "text.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(DocumentError, match="holds no weights"):
        load_weights(model(1), tmp_path / "empty.pt")
    torch.save(nn.Linear(9, 9).state_dict(), tmp_path / "other.pt")
    with pytest.raises(DocumentError, match="weights of another model"):
        load_weights(model(1), tmp_path / "other.pt")
    torch.save(model(1), tmp_path / "pickled.pt")  # code, which is not executed
    with pytest.raises(DocumentError, match="cannot read the checkpoint .*: it holds more than tensors"):
        load_weights(model(1), tmp_path / "pickled.pt")
