"""The documentation names what there is, and every page stands in its navigation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from autoopt.cli.group import COMMANDS, cli
from autoopt.cli.parameters import read_options
from autoopt.errors import AutooptError
from autoopt.options import KEYS, Options
from autoopt.records import Configuration, Result, Stage

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
COMMAND_LINE = (REFERENCE / "commands.md").read_text(encoding="utf-8")
OPTIONS = (REFERENCE / "options.md").read_text(encoding="utf-8")
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
    codes = {error.exit_code for error in subclasses(AutooptError)}
    assert codes <= set(map(int, re.findall(r"^\| (\d+) \|", COMMAND_LINE, re.MULTILINE)))


def subclasses(kind: type[AutooptError]) -> list[type[AutooptError]]:
    """The class and all below it."""
    return [kind, *(below for each in kind.__subclasses__() for below in subclasses(each))]


def test_every_field_of_a_result_is_in_the_reference() -> None:
    text = (REFERENCE / "result.md").read_text(encoding="utf-8")
    for model in (Result, Configuration, Stage):
        for name in (each.name for each in fields(model)):
            assert f"`{name}`" in text or name in INTERNAL, f"{model.__name__}.{name}"


INTERNAL = {"cpu_seconds", "padding"}
"""Fields of a result that only the report and the tests read."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_the_page_and_no_other(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    options = {word for p in command.params if isinstance(p, click.Option) for word in p.opts}
    if name == "optimize":
        written = re.findall(r"^\| `(--[a-z-]+)", OPTIONS, re.MULTILINE)
        assert written == [f"--{key}" for key in KEYS]
    else:
        (row,) = re.findall(rf"^\| `{name}[^a-z|][^|]*\|(.*)\|$", COMMAND_LINE, re.MULTILINE)
        written = re.findall(r"`(--[a-z0-9-]+)", row)
    assert set(written) == options


def test_the_defaults_in_the_page_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stated = dict(re.findall(r"^\| `--([a-z-]+)[^|]*\| `([^`<]+)` \|", OPTIONS, re.MULTILINE))
    assert set(stated) == {"budget", "tolerance", "min-gain", "device", "seed", "allow", "executor"}
    assert read_options(stated) == Options()


@pytest.mark.parametrize("key", ["budget", "tolerance", "min-gain", "device", "seed", "executor"])
def test_the_defaults_in_the_help_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    command = cli.get_command(click.Context(cli), "optimize")
    (option,) = [p for p in command.params if isinstance(p, click.Option) and f"--{key}" in p.opts]
    stated = re.search(r"\[default: (.+)\]", option.help or "")
    assert stated
    assert read_options({key: stated[1]}) == Options()
