"""What is optional and not there is told in one way: the package, and the extra that brings it."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoopt import errors
from autoopt.errors import EnvironmentLacks
from autoopt.options import Options
from autoopt.running.baseline_spec import check_command
from autoopt.script.command import Build
from autoopt.trial.remote.launcher import RayCluster
from autoopt_model.lora import Lora

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DISTRIBUTIONS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml"}
DISTRIBUTIONS |= {"pynvml": "nvidia-ml-py", "torch_pruning": "torch-pruning"}


@pytest.mark.parametrize(
    ("package", "extra"), [(package, extra) for extra, packages in errors.EXTRAS.items() for package in packages]
)
def test_the_extra_that_is_named_brings_the_package(package: str, extra: str) -> None:
    assert any(re.split(r"[<>=!~]", line)[0] == DISTRIBUTIONS.get(package, package) for line in EXTRAS[extra])


def test_every_extra_that_a_message_names_is_one() -> None:
    folders = (ROOT / "autoopt", ROOT / "strategies", ROOT / "reports")
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"torch-autoopt\[([a-z]+)\]", text)}
    assert {"model"} <= named <= set(EXTRAS)


def test_tuning_without_optuna_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else found(name, *rest)
    )
    with pytest.raises(EnvironmentLacks, match="optuna is not installed") as refused:
        check_command(Build("json:build"), Options(budget_seconds=60.0, tune=("lr=log:0.0001..0.01",)))
    assert "torch-autoopt[tune]" in str(refused.value.hint)


def test_a_cluster_without_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentLacks, match="ray is not installed") as refused:
        RayCluster(None)
    assert "torch-autoopt[ray]" in str(refused.value.hint)


def test_adapters_without_peft_are_not_applicable() -> None:
    case: Any = SimpleNamespace(inspected=lambda name: {"groups": [["4"]], "installed": False, "saving": 8.0})
    answer = Lora().applies(case)
    assert not answer
    assert answer.reason == "peft is not installed: pip install 'torch-autoopt[model]'"
