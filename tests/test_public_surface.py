"""The names that users rely on, pinned: a change here is a change of the contract."""

from __future__ import annotations

import inspect

import click
import pytest

import autoopt
from autoopt.cli.group import COMMANDS, cli
from autoopt.errors import AutooptError


def test_the_facade() -> None:
    names = (
        "Applies AutooptError Case Change Edit Estimate Example Plan Recipe Result Risk Setup Strategy Target Trial "
        "UserBuild Workload Wrap __version__ apply optimize"
    )
    assert autoopt.__all__ == names.split() == dir(autoopt)
    assert None not in [getattr(autoopt, name) for name in autoopt.__all__]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        autoopt.optimise  # noqa: B018


def test_what_a_setup_can_be_asked_for() -> None:
    parts = (
        "batch cadence collate compile dataset distributed evaluation flags loader loss model optimizer precision "
        "sampler scheduler step transfer"
    )
    methods = {name for name, _ in inspect.getmembers(autoopt.Setup, inspect.isfunction) if name.startswith("with_")}
    assert methods == {f"with_{part}" for part in parts.split()}


def test_what_a_strategy_has() -> None:
    names = {name for name in vars(autoopt.Strategy) if not name.startswith("_")}
    methods = {"applies", "predict", "settings", "companions", "apply", "recipe", "memory_savings", "memory_saved"}
    assert methods | {"stages", "risk", "after", "example"} <= names
    assert autoopt.Strategy.__abstractmethods__ == {"apply"}


OPTIONS = {
    "optimize": "budget target tolerance min-gain device seed only memory-limit skip strategies allow executor nproc "
    "price log out metric tune parallel json? quiet? open? accept-undecided?",
    "profile": "budget device seed only skip strategies allow out metric with watch memory-limit nproc json? quiet? "
    "open?",
    "resume": "json? quiet? open? accept-changed",
    "report": "out json open card against",
    "export": "to out code",
    "apply": "plan",
    "revert": "plan",
    "run": "plan device seed strategies",
    "train": "price plan target device seed strategies log out json? quiet?",
    "verify": "against budget json? quiet?",
    "compare": "baseline candidate require ledger html markdown budget device strategies metric baseline-python "
    "candidate-python json? quiet?",
    "judge": "baseline candidate seconds session ledger head metric device strategies quiet?",
    "bisect": "good bad lock quality budget metric device strategies json? quiet?",
    "latency": "p95 max-drop clients checkpoint batch lengths student budget device seed price out json? quiet? open?",
    "mcp": "workspace install",
    "strategies": "strategies json?",
    "doctor": "device json?",
}
"""Options by command; ``?``: with its ``--no-`` form."""


def test_the_commands() -> None:
    assert tuple(OPTIONS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_comes_or_goes_unnoticed(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    options = {word for p in command.params if isinstance(p, click.Option) for word in (*p.opts, *p.secondary_opts)}
    named = [word.rstrip("?") for word in OPTIONS[name].split()]
    refused = [word.rstrip("?") for word in OPTIONS[name].split() if word.endswith("?")]
    assert options == {*(f"--{word}" for word in named), *(f"--no-{word}" for word in refused)}
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def leaves(kind: type[AutooptError]) -> dict[str, int]:
    return {kind.__name__: kind.exit_code} | {k: v for below in kind.__subclasses__() for k, v in leaves(below).items()}


def test_the_exit_codes() -> None:
    wanted = {"AutooptError": 1, "UsageError": 2, "DocumentError": 2, "WorkloadError": 3, "EnvironmentLacks": 4}
    assert leaves(AutooptError).items() >= {**wanted, "Interrupted": 130}.items()
