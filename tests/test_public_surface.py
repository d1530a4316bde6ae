"""The names that users rely on, pinned: a change here is a change of the contract; and the pages that name them."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

import autoopt
from autoopt.cli.group import COMMANDS, cli
from autoopt.cli.parameters import read_options
from autoopt.errors import AutooptError
from autoopt.options import OPTIONS as KEYS
from autoopt.options import Options
from autoopt.records import Configuration, Result, Stage


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


def options_of(name: str) -> list[click.Option]:
    """Of a command."""
    command = cli.get_command(click.Context(cli), name)
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_comes_or_goes_unnoticed(name: str) -> None:
    options = {word for option in options_of(name) for word in (*option.opts, *option.secondary_opts)}
    named = [word.rstrip("?") for word in OPTIONS[name].split()]
    refused = [word.rstrip("?") for word in OPTIONS[name].split() if word.endswith("?")]
    assert options == {*(f"--{word}" for word in named), *(f"--no-{word}" for word in refused)}
    assert all(option.help for option in options_of(name))


def leaves(kind: type[AutooptError]) -> dict[str, int]:
    return {kind.__name__: kind.exit_code} | {k: v for below in kind.__subclasses__() for k, v in leaves(below).items()}


def test_the_exit_codes() -> None:
    wanted = {"AutooptError": 1, "UsageError": 2, "DocumentError": 2, "WorkloadError": 3, "EnvironmentLacks": 4}
    assert leaves(AutooptError).items() >= {**wanted, "Interrupted": 130}.items()


# The documentation names what there is, and every page stands in its navigation.

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
COMMAND_LINE = (REFERENCE / "commands.md").read_text(encoding="utf-8")
OPTIONS_PAGE = (REFERENCE / "options.md").read_text(encoding="utf-8")
SOURCES = ("autoopt", "strategies", "reports", "benchmarks", "examples", "tests", ".ci")


def test_every_page_is_in_the_index_and_in_the_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index.md"} == set(re.findall(r"\]\((?!\.\.)([\w/-]+\.md)(?:#[^)]*)?\)", index))
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == pages | {"readme.md", "contributing.md", "changelog.md"}


def test_every_page_that_the_code_names_is_there() -> None:
    """``docs/page.md`` is the name of one that there is only in the tests of the check itself."""
    for file in (file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")):
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8")):
            assert name == "docs/page.md" or (ROOT / name).exists(), f"{file.relative_to(ROOT)}: {name}"


def test_every_exit_code_is_in_the_reference() -> None:
    assert set(leaves(AutooptError).values()) <= set(map(int, re.findall(r"^\| (\d+) \|", COMMAND_LINE, re.MULTILINE)))


def test_every_field_of_a_result_is_in_the_reference() -> None:
    text = (REFERENCE / "result.md").read_text(encoding="utf-8")
    for model in (Result, Configuration, Stage):
        for name in (each.name for each in fields(model)):
            assert f"`{name}`" in text or name in INTERNAL, f"{model.__name__}.{name}"


INTERNAL = {"cpu_seconds", "padding"}
"""Fields of a result that only the report and the tests read."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_the_page_and_no_other(name: str) -> None:
    if name == "optimize":
        written = re.findall(r"^\| `(--[a-z-]+)", OPTIONS_PAGE, re.MULTILINE)
        assert written == [f"--{key}" for key in KEYS]
    else:
        (row,) = re.findall(rf"^\| `{name}[^a-z|][^|]*\|(.*)\|$", COMMAND_LINE, re.MULTILINE)
        written = re.findall(r"`(--[a-z0-9-]+)", row)
    assert set(written) == {word for option in options_of(name) for word in option.opts}


def test_the_defaults_in_the_page_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stated = dict(re.findall(r"^\| `--([a-z-]+)[^|]*\| `([^`<]+)` \|", OPTIONS_PAGE, re.MULTILINE))
    assert set(stated) == {"budget", "tolerance", "min-gain", "device", "seed", "allow", "executor"}
    assert read_options(stated) == Options()


@pytest.mark.parametrize("key", ["budget", "tolerance", "min-gain", "device", "seed", "executor"])
def test_the_defaults_in_the_help_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    (option,) = [option for option in options_of("optimize") if f"--{key}" in option.opts]
    stated = re.search(r"\[default: (.+)\]", option.help or "")
    assert stated
    assert read_options({key: stated[1]}) == Options()
