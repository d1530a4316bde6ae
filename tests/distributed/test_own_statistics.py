"""BatchNorm that is synchronized between processes, while each of them is looked at by itself."""

from __future__ import annotations

import pytest
from torch import nn

from autoopt.benchmark.distributed import step


def test_batchnorm_waits_for_nobody_while_processes_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process measures for as long as it likes: a message in a forward pass would be waited for in vain."""
    monkeypatch.setattr(step, "alone", lambda: "this process")
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    model[1].process_group = "all of them"
    with step.own_statistics(model):
        assert model[1].process_group == "this process"
    assert model[1].process_group == "all of them"
