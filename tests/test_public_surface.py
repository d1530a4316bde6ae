"""The names that users rely on, pinned: a change here is a change of the contract."""

from __future__ import annotations

import inspect

import click
import pytest

import autoopt
from autoopt.cli.group import COMMANDS, cli
from autoopt.errors import AutooptError


def test_the_facade() -> None:
    assert autoopt.__all__ == sorted(
        [
            "Applies",
            "AutooptError",
            "Case",
            "Change",
            "Edit",
            "Estimate",
            "Example",
            "Plan",
            "Recipe",
            "Result",
            "Risk",
            "Setup",
            "Strategy",
            "Target",
            "Trial",
            "UserBuild",
            "Workload",
            "Wrap",
            "__version__",
            "apply",
            "optimize",
        ]
    )
    assert dir(autoopt) == autoopt.__all__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        autoopt.optimise  # noqa: B018


def test_every_name_of_the_facade_can_be_had() -> None:
    for name in autoopt.__all__:
        assert getattr(autoopt, name) is not None


def test_what_a_setup_can_be_asked_for() -> None:
    methods = {name for name, _ in inspect.getmembers(autoopt.Setup, inspect.isfunction) if name.startswith("with_")}
    assert methods == {
        "with_batch",
        "with_cadence",
        "with_collate",
        "with_compile",
        "with_dataset",
        "with_distributed",
        "with_evaluation",
        "with_flags",
        "with_loader",
        "with_loss",
        "with_model",
        "with_optimizer",
        "with_precision",
        "with_sampler",
        "with_scheduler",
        "with_step",
        "with_transfer",
    }


def test_what_a_strategy_has() -> None:
    names = {name for name in vars(autoopt.Strategy) if not name.startswith("_")}
    methods = {"applies", "predict", "settings", "companions", "apply", "recipe", "memory_savings", "memory_saved"}
    assert methods | {"stages", "risk", "after", "example"} <= names
    assert autoopt.Strategy.__abstractmethods__ == {"apply"}


SEARCH = {"--json", "--no-json", "--quiet", "--no-quiet"}
OPTIONS = {
    "optimize": SEARCH
    | {"--open", "--no-open", "--budget", "--target", "--tolerance", "--min-gain", "--device", "--seed", "--only"}
    | {"--memory-limit", "--accept-undecided", "--no-accept-undecided"}
    | {"--skip", "--strategies", "--allow", "--executor", "--nproc", "--price", "--log", "--out", "--metric"}
    | {"--tune", "--parallel"},
    "profile": SEARCH
    | {"--open", "--no-open", "--budget", "--device", "--seed", "--only", "--skip", "--strategies", "--allow", "--out"}
    | {"--metric"}
    | {"--with", "--watch", "--memory-limit", "--nproc"},
    "resume": SEARCH | {"--open", "--no-open", "--accept-changed"},
    "report": {"--out", "--json", "--open", "--card", "--against"},
    "export": {"--to", "--out", "--code"},
    "apply": {"--plan"},
    "revert": {"--plan"},
    "run": {"--plan", "--device", "--seed", "--strategies"},
    "train": SEARCH | {"--price", "--plan", "--target", "--device", "--seed", "--strategies", "--log", "--out"},
    "verify": SEARCH | {"--against", "--budget"},
    "compare": SEARCH
    | {"--baseline", "--candidate", "--require", "--ledger", "--html", "--markdown", "--budget", "--device"}
    | {"--strategies", "--metric", "--baseline-python", "--candidate-python"},
    "judge": {"--baseline", "--candidate", "--seconds", "--session", "--ledger", "--head", "--metric", "--device"}
    | {"--strategies", "--quiet", "--no-quiet"},
    "bisect": SEARCH | {"--good", "--bad", "--lock", "--quality", "--budget", "--metric", "--device", "--strategies"},
    "latency": SEARCH
    | {"--p95", "--max-drop", "--clients", "--checkpoint", "--batch", "--lengths", "--student", "--budget", "--device"}
    | {"--seed", "--price", "--out", "--open", "--no-open"},
    "mcp": {"--workspace", "--install"},
    "strategies": {"--strategies", "--json", "--no-json"},
    "doctor": {"--device", "--json", "--no-json"},
}


def test_the_commands() -> None:
    assert tuple(OPTIONS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_comes_or_goes_unnoticed(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = {word for p in command.params if isinstance(p, click.Option) for word in (*p.opts, *p.secondary_opts)}
    assert options == OPTIONS[name]
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def test_the_exit_codes() -> None:
    def leaves(kind: type[AutooptError]) -> dict[str, int]:
        found = {kind.__name__: kind.exit_code}
        for below in kind.__subclasses__():
            found |= leaves(below)
        return found

    codes = leaves(AutooptError)
    assert codes["AutooptError"] == 1
    assert codes["UsageError"] == codes["DocumentError"] == 2
    assert codes["WorkloadError"] == 3
    assert codes["EnvironmentLacks"] == 4
    assert codes["Interrupted"] == 130
