"""Strategies are registered whole or refused in a sentence; an installed one that is broken ends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt import Case, Change, Risk, Setup, Strategy
from autoopt.errors import UsageError
from autoopt.registry import Registry, Source, load_strategies
from autoopt.strategy import check_strategy
from autoopt.testing.method_cards import shipped
from modules import autoopt


class Plain(Strategy):
    name = "plain"
    stages = frozenset({"forward"})
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        return setup.with_flags(cudnn_benchmark=True)


def made(**parts: Any) -> list[Source]:
    """The built-in strategies and a plain one with such parts."""
    return [*load_strategies().sources, Source(type("Made", (Plain,), parts)(), "under test")]


def misspelt(self: Strategy, case: Case, setting: dict[str, Any]) -> list[Change]:
    return [Change(strategy="thread", setting={"threads": 1})]


def spelt(self: Strategy, case: Case, setting: dict[str, Any]) -> list[Change]:
    return [Change(strategy="threads", setting={"threads": 1})]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"stages": frozenset({"prepare"})}, "there is no stage 'prepare'; did you mean preparation?"),
        ({"after": frozenset({"worker"})},
         "after names a strategy 'worker' that there is not; did you mean workers?"),
        ({"companions": misspelt},
         r"companions\(\) names a strategy 'thread' that there is not; did you mean threads?"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_with_the_nearest_name(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        Registry(made(**parts))


def test_what_exists_is_registered() -> None:
    assert "plain" in Registry(made(companions=spelt))
    assert all(check_strategy(strategy) == [] for strategy in shipped())


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"another one is called 'plain' \(one\)"):
        Registry([Source(Plain(), "one"), Source(Plain(), "other")])


BROKEN = {
    "raises": ("raise RuntimeError('no such driver')", "RuntimeError: no such driver"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "lacks": ("", "has no attribute"),
    "no_strategy": ("Mine = 3", "is no autoopt.Strategy"),
    "invalid": (
        "from autoopt import Strategy\nclass Mine(Strategy):\n    name = 'workers'\n    def apply(self, a, b): ...",
        "another one is called 'workers'",
    ),
}


def install(folder: Path, name: str, source: str) -> None:
    """A distribution with one module and one entry point, as pip leaves it."""
    (folder / f"plugin_{name}.py").write_text(source)
    info = folder / f"plugin_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[autoopt.strategies]\n{name} = plugin_{name}:Mine\n")


def test_installed_plugins_that_are_broken_are_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (source, _) in BROKEN.items():
        install(tmp_path, name, source)
    install(tmp_path, "sound", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom sound_strategy import Mine")
    (tmp_path / "sound_strategy.py").write_text(
        "from autoopt import Strategy\nclass Mine(Strategy):\n    name = 'sound'\n    after = {'workers'}\n"
        "    def apply(self, setup, setting): return setup"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = load_strategies()
    assert "sound" in registry
    assert len(registry.warnings) == len(BROKEN)
    for name, (_, said) in BROKEN.items():
        (warning,) = (text for text in registry.warnings if repr(name) in text)
        assert said in warning
        assert f"plugin-{name}" in warning


def test_a_command_goes_on_without_a_broken_plugin(tmp_path: Path) -> None:
    install(tmp_path, "raises", BROKEN["raises"][0])
    done = autoopt("strategies", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert "workers" in done.stdout
    assert "warning: the installed strategy plugin 'raises' of plugin-raises" in done.stderr
