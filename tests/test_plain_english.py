"""The check of plain English finds what it is there for; the pages themselves: ``make plain``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from modules import module_of

ROOT = Path(__file__).parents[1]


plain = module_of(ROOT / ".ci" / "plain.py")


def broken(folder: Path, text: str, name: str = "docs/page.md") -> list[str]:
    """The rules that a page breaks."""
    page = folder / name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    (page.parent / "other.md").write_text("## A part of `it`\n", encoding="utf-8")
    return [finding.rule for finding in plain.check(folder)]


def words(count: int) -> str:
    return "Short words here. " * (count // 3) + "more " * (count % 3)


def sentences(count: int) -> str:
    """Five sentences of so many words, and what is no sentence."""
    table, code = "| " + "cell " * 60 + "|\n", "```\n" + "code " * 60 + "\n```\n"
    return f"# A title\n\n{('Here ' + ' '.join(['word'] * (count - 1)) + '. ') * 5}\n\n{table}\n{code}"


@pytest.mark.parametrize(
    ("name", "text", "rules"),
    [
        ("docs/page.md", words(1200), []),
        ("docs/page.md", words(1201), ["size"]),
        ("README.md", words(901), ["size"]),
        ("docs/architecture.md", words(2000), []),
        ("docs/reference/strategies.md", words(9000) + "It is proved.", []),  # it is generated
        ("docs/page.md", sentences(18), []),
        ("docs/page.md", sentences(19), ["sentences"]),
        ("docs/page.md", "| change | told as decided |", ["words"]),
        ("docs/page.md", "A mended defect.", ["words", "words"]),
        ("docs/page.md", "It had been slow.", ["words"]),
        ("docs/page.md", "Waterproof `proved` code.", []),
        ("docs/page.md", "```\nproved\n```", []),
        *(
            ("docs/page.md", f"# Here\n\n[Read]({link}).", [])
            for link in ("other.md", "other.md#a-part-of-it", "https://example.org/x", "#here")
        ),
        *(
            ("docs/page.md", f"# Here\n\n[Read]({link}).", ["link"])
            for link in ("missing.md", "other.md#no-such-part", "#not-here")
        ),
        ("docs/page.md", "The log holds the stack trace of the error. Look up the option `--ledger`.", []),
    ],
)
def test_a_page_is_short_and_plain(tmp_path: Path, name: str, text: str, rules: list[str]) -> None:
    """The pages of this repository: ``make plain``."""
    assert broken(tmp_path, text, name) == rules


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('"""The proof of it."""', ["proof"]),
        ("x = 1  # told by the loader", ["told"]),
        ('raise ValueError("it was looked at twice")', ["looked at"]),
        ('"""An error says what to do; the call stack."""', []),
        ('"""Args:\n    told: an argument has its name in the code.\n"""', []),
        ('OPERATORS = "cat stack index".split()', []),
    ],
)
def test_words_of_code(tmp_path: Path, code: str, words: list[str]) -> None:
    (tmp_path / "autoopt").mkdir()
    (tmp_path / "autoopt" / "module.py").write_text(code, encoding="utf-8")
    assert [each.what.split("'")[1] for each in plain.check_code(tmp_path)] == words


def test_subjects_of_commits(tmp_path: Path) -> None:
    assert plain.subjects(tmp_path) is None
    git(tmp_path, "init", "--initial-branch", "main")
    git(tmp_path, "commit", "--allow-empty", "--message", "x" * 90)
    git(tmp_path, "switch", "--create", "topic")
    git(tmp_path, "commit", "--allow-empty", "--message", "docs: short")
    git(tmp_path, "commit", "--allow-empty", "--message", "y" * 73)
    names = plain.subjects(tmp_path)
    assert names == ["y" * 73, "docs: short"]
    assert [finding.where for finding in plain.long_subjects(names)] == ["y" * 73]


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
