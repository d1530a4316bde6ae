"""Tests that need a CUDA device: collected everywhere, skipped with a reason where there is none.

``GPU_TESTS_ON=cpu`` runs those that can run anywhere on the CPU: a check of the tests themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
WHERE = os.environ.get("GPU_TESTS_ON", "cuda:0")


@pytest.fixture(autouse=True)
def needs_cuda(request: pytest.FixtureRequest) -> None:
    if torch.cuda.is_available():
        return
    if WHERE == "cpu" and request.node.get_closest_marker("cuda_only") is None:
        return
    pytest.skip("there is no CUDA device on this machine")


@pytest.fixture
def device() -> str:
    return WHERE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Libraries there are of other versions than those that the warnings of this project were settled with."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda_only: says nothing on the CPU")
