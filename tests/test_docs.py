"""The documentation names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from autoopt.cli.group import COMMANDS, cli
from autoopt.cli.parameters import read_options
from autoopt.options import KEYS, Options

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\(([a-z-]+\.md)\)", index))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_the_page_and_no_other(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = {word for p in command.params if isinstance(p, click.Option) for word in p.opts}
    if name == "optimize":
        written = re.findall(r"^\| `(--[a-z-]+)", COMMAND_LINE, re.MULTILINE)
        assert written == [f"--{key}" for key in KEYS]
    else:
        (row,) = re.findall(rf"^\| `{name}[^|]*\|(.*)\|$", COMMAND_LINE, re.MULTILINE)
        written = re.findall(r"`(--[a-z0-9-]+)", row)
    assert set(written) == options


def test_the_defaults_in_the_page_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stated = dict(re.findall(r"^\| `--([a-z-]+)[^|]*\| `([^`<]+)` \|", COMMAND_LINE, re.MULTILINE))
    assert set(stated) == {"budget", "tolerance", "min-gain", "device", "seed", "allow", "executor"}
    assert read_options(stated) == Options()


@pytest.mark.parametrize("key", ["budget", "tolerance", "min-gain", "device", "seed", "executor"])
def test_the_defaults_in_the_help_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    command = cli.get_command(click.Context(cli), "optimize")
    assert command is not None
    (option,) = [p for p in command.params if isinstance(p, click.Option) and f"--{key}" in p.opts]
    stated = re.search(r"\[default: (.+)\]", option.help or "")
    assert stated
    assert read_options({key: stated[1]}) == Options()
