"""The allocator's variable: what the user has set in it stays."""

from __future__ import annotations

import pytest

from autoopt import Setup
from autoopt_strategies.memory.allocator import Allocator


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"},
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8", "PYTORCH_CUDA_ALLOC_CONF": ""},
            {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8,expandable_segments:True"},
        ),
    ],
)
def test_the_users_own_settings_stay(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], wanted: dict[str, str]
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    strategy = Allocator()
    setting = {"expandable_segments": True}
    flags = strategy.apply(Setup(), setting).flags["env"]
    assert flags == wanted
    ((name, value),) = wanted.items()
    assert f'os.environ["{name}"] = "{value}"' in strategy.recipe(setting).pytorch
    monkeypatch.setenv(name, value)  # as in the trial's own process, where it is applied once more
    assert strategy.apply(Setup(), setting).flags["env"] == wanted
