"""Plain English, as far as a program can check it: sizes of pages, sentences, words, links, subjects of commits.

    python .ci/plain.py              # README, CONTRIBUTING, CHANGELOG, docs/, the product's code, this branch's commits
    python .ci/plain.py --words      # words of each page

Exit code 1 where a page or a commit breaks a rule; each finding names the file, the rule and the place.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORDS_A_PAGE = 1200
"""A page that is read in five minutes; other sizes with their reason in ``SIZES``."""
SIZES: dict[str, int | None] = {
    "README.md": 900,  # one screen to the first result
    "CHANGELOG.md": 2500,  # one line a change
    "docs/architecture.md": 2000,  # the whole engine on one page
    "docs/reference/strategies.md": None,  # generated: one card for each strategy
    "docs/measurements/whole-runs.md": None,  # generated: each patch in full, as its reviewer reads it
}
MEDIAN_SENTENCE = 18
"""Words of the median sentence of a page, at most."""
FEW_SENTENCES = 5
"""A median of fewer sentences says nothing."""
SUBJECT = 72
"""Characters of a commit's subject, at most: what `git log --oneline` shows in a terminal."""
GENERATED = {
    "docs/reference/strategies.md": "made from docstrings, which are checked where they are written",
    "docs/gallery/README.md": "made from the results of old runs by autoopt_reports.gallery",
}
"""Pages without a check of words and sentences, with the reason."""
BANNED = {
    r"proofs?|proved?|proven|proves|proving": "confirmation, confirm",
    r"(a|the|first|second|each|every|one|no) looks?|looked at|looks at|glance": "screening measurement",
    r"(?<!call )(?<!\.)stacks?(?! trace)(?! of every thread)|stacked": "combined candidate",
    r"told|tells": "reported, shows",
    r"says|said": "reported, reason",
    r"taken out|takes out|kept apart|taken apart|takes apart": "removed, stack ablation",
    r"outdone|exchanged": "superseded, swapped",
    r"sayable": "applicable to a script",
    r"joints": "torch hooks",
    r"mended|defects?": "fixed, bug",
    r"in turns|in turn|by turns|turn by turn": "interleaved",
    r"by hand|a person": "manual",
    r"luck|lucky|luckiest|by lot": "between-process variance, at random",
    r"contenders?": "arm",
    r"beside": "next to, in addition to, compared with",
    r"gang|rested|calm|astray|sayings?": "the field's term (house words)",
    r"pace|paced|evened|rhythm": "reference speed, cache effects",
    r"passengers?|keepers?|lighter|rungs?|agenda": "the field's term (house words)",
    r"had been|since mended|hitherto|meanwhile": "say what is; history belongs in one line of the changelog",
}
"""Words of a dialect (whole words, in prose and tables, not in code) and what to write.

Left out of the list although the house's table has it, since the plain use is common: "ledger" (the option `--ledger`),
"box", "inspect", "survey", "match", "verify", "live", "tools", "place", "fit", "apart" alone, "look up".
"""


PACKAGES = ("autoopt", "strategies/autoopt_strategies", "reports/autoopt_reports")
"""Code whose docstrings, comments and messages are checked for words."""
PLAIN_IN_CODE = {r"says|said"}
"""Patterns that only pages are checked for: "the error says what to do" is plain English."""
MESSAGE = 3
"""Words from which on a text in code is a message rather than a name."""


class Finding(NamedTuple):
    """A broken rule."""

    where: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}: {self.what}"


def pages(root: Path) -> list[Path]:
    """The pages that are checked."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def count(text: str) -> int:
    """Words of a page: everything between spaces that holds a letter or a digit, code and tables included."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def without_code(text: str) -> str:
    """The text with fences and comments removed and each code span as one word; lines stay where they are."""
    text = re.sub(r"^```.*?^```", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    text = re.sub(r"`[^`]*`", lambda found: "code" + "\n" * found[0].count("\n"), text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[int]:
    """The number of words of each sentence of the prose; headings and tables are no prose."""
    blocks: list[str] = [""]
    for line in without_code(text).splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "|", ">")):
            blocks.append("")
        elif re.match(r"([*+-]|\d+\.)\s", stripped):
            blocks.append(re.sub(r"^([*+-]|\d+\.)\s+", "", stripped))
        else:
            blocks[-1] += " " + stripped
    found = [count(part) for block in blocks for part in re.split(r"(?<=[.!?])[*_\")]*\s+|:\s*$", block)]
    return [words for words in found if words]


def banned(text: str, allowed: Collection[str] = ()) -> Iterator[tuple[int, str, str]]:
    """Line, word and what to write in its place."""
    plain = without_code(text)
    for pattern, instead in BANNED.items():
        if pattern in allowed:
            continue
        for found in re.finditer(rf"\b(?:{pattern})\b", plain, flags=re.I):
            yield plain.count("\n", 0, found.start()) + 1, found[0], instead


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, comment and message of a module."""
    tree = ast.parse(source)
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "split"}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in names)
    for node in texts:
        if isinstance(node.value, str) and len(node.value.split()) >= MESSAGE:
            yield node.lineno, re.sub(r"^ +\w+:", "", node.value, flags=re.M)  # an argument has its name in the code
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def check_code(root: Path = ROOT) -> list[Finding]:
    """Words of the dialect in the product's code."""
    return [
        Finding(f"{file.relative_to(root)}:{line + further - 1}", "words", f"{word!r}: write {so}")
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
        for line, text in prose(file.read_text(encoding="utf-8"))
        for further, word, so in banned(text, PLAIN_IN_CODE)
    ]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


def dead_links(page: Path) -> Iterator[str]:
    """Links within the project that lead nowhere."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        known = anchors(file.read_text(encoding="utf-8")) if file.suffix == ".md" and file.exists() else None
        if not file.exists() or (anchor and known is not None and anchor not in known):
            yield target


def check(root: Path = ROOT) -> list[Finding]:
    """What is wrong with the pages below a folder."""
    found: list[Finding] = []
    for page in pages(root):
        name, text = str(page.relative_to(root)), page.read_text(encoding="utf-8")
        limit, words = SIZES.get(name, WORDS_A_PAGE), count(text)
        if limit is not None and words > limit:
            found.append(Finding(name, "size", f"{words} words, at most {limit}"))
        found += [Finding(name, "link", f"{target} leads nowhere") for target in dead_links(page)]
        if name in GENERATED:
            continue
        lengths = sentences(text)
        if len(lengths) >= FEW_SENTENCES and statistics.median(lengths) > MEDIAN_SENTENCE:
            median = f"the median sentence has {statistics.median(lengths):g} words, at most {MEDIAN_SENTENCE}"
            found.append(Finding(name, "sentences", median))
        found += [Finding(f"{name}:{line}", "words", f"{word!r}: write {so}") for line, word, so in banned(text)]
    return found


def subjects(root: Path = ROOT) -> list[str] | None:
    """The subjects of this branch's commits: since the last release, or since main. None without a history."""
    for base in ("v0.2.0", "main", "origin/main"):
        start = _git(root, "merge-base", base, "HEAD")
        if start:
            listed = _git(root, "log", "--no-merges", "--format=%s", f"{start.strip()}..HEAD")
            return (listed or "").splitlines()
    return None


def long_subjects(names: list[str]) -> list[Finding]:
    """Subjects that a terminal cuts."""
    return [
        Finding(name, "commit", f"{len(name)} characters, at most {SUBJECT}") for name in names if len(name) > SUBJECT
    ]


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", action="store_true", help="print the words of each page")
    if parser.parse_args(arguments).words:
        for page in pages(ROOT):
            words = count(page.read_text(encoding="utf-8"))
            sys.stdout.write(f"{words:>6}  {page.relative_to(ROOT)}\n")
        return 0
    found = check(ROOT) + check_code(ROOT) + long_subjects(subjects(ROOT) or [])
    sys.stdout.write(("\n".join(map(str, found)) or "plain: all pages, code and commits hold") + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
