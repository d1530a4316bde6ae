"""The page as a file: self-contained, small, closed to injection, and made without torch."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sample
from autoopt.records import Profile, Result
from autoopt_reports import html

Golden = Callable[[str], Result]
NAMES = ["win", "no_gain", "out_of_memory", "interrupted", "hostile", "thousand", "sizes"]
SECTIONS = [
    "verdict", "trust", "adopt", "waterfall", "ablation", "time", "pipeline", "roofline", "learning", "tradeoff",
    "predictions", "search", "trials", "advice", "reproduce",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_self_contained_in_reading_order(name: str, golden: Golden) -> None:
    result = golden(name)
    page = html.render(result)
    there = [section for section in re.findall(r'<section id="([a-z]+)"', page) if section != "warnings"]
    assert there == ([*SECTIONS[:10], "sizes", *SECTIONS[10:]] if name == "sizes" else SECTIONS)
    links = re.findall(r'\b(?:src|href|action|poster|data)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:application/gzip", "data:,")) for link in links)
    markup = re.sub(r"<(pre|code|bdi|title|desc)\b.*?</\1>", "", page, flags=re.S)
    assert "@import" not in page
    assert "url(" not in page
    assert not re.search(r"\bstyle=|\bon[a-z]+=", markup)
    (packed,) = re.findall(r'download="result.json.gz" href="data:application/gzip;base64,([^"]+)"', page)
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == json.loads(result.model_dump_json())
    assert html.render(result) == page, "the same document gives the same page"


def test_the_policy_allows_the_page_its_own_style_and_script_and_nothing_else(golden: Golden) -> None:
    page = html.render(golden("win"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    rules = policy[1].replace("&#39;", "'")
    assert rules.startswith("default-src 'none'")
    for tag in ("style", "script"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.S)
        assert len(found) == 1
        assert base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode() in rules


@pytest.mark.parametrize(("count", "rounds", "limit"), [(50, 3, 250), (50, 8, 250), (1000, 3, 1024)])
def test_sizes(count: int, rounds: int, limit: int) -> None:
    result = sample.many(count)
    more = tuple(result.rounds[k % 3].model_copy(update={"index": k}) for k in range(rounds))
    assert len(html.render(result.model_copy(update={"rounds": more})).encode()) <= limit * 1024


def test_hostile_names_stay_text(golden: Golden) -> None:
    page = html.render(golden("hostile"))
    assert "<script>alert" not in page
    assert page.count("<script>") == page.count("</script>") == page.count("</style>") == 1
    assert page.count("{{7*7}}") > 20, "a name must not be run as a template"
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "x" * 2000 not in page


def test_every_chart_has_a_title_a_description_and_its_data(golden: Golden) -> None:
    page = html.render(golden("win"))
    charts = re.findall(r'<svg class="(?:fluid|fixed)" role="img" aria-labelledby="([\w-]+) ([\w-]+)"', page)
    assert len(charts) >= 12
    for title, description in charts:
        assert re.search(rf'<title id="{title}">[^<]+</title><desc id="{description}">[^<]+</desc>', page)
    for figure in re.findall(r"<figure.*?</figure>", page, flags=re.S):
        has_table = "<table" in figure or "Against" in figure or "less baseline" in figure
        assert has_table, figure[:300]


def test_what_was_not_measured_says_so_and_is_never_zero(golden: Golden) -> None:
    page = html.render(golden("interrupted"))
    assert page.count("not measured") > 20
    assert page.count(">None.</p>") == 7, "all lists of trials but one are empty"
    assert "No manual change found" in page
    for section in ("ablation", "learning"):
        part = re.search(rf'<section id="{section}">.*?</section>', page, flags=re.S)
        assert part
        assert "Not measured" in part[0]
    assert '<dt class="u">peak memory</dt><dd><span class="missing"' in page


def test_write_replaces_the_file_whole(tmp_path: Path, golden: Golden) -> None:
    target = tmp_path / "deep" / "report.html"
    assert html.write_text(html.render(golden("no_gain")), target) == target
    html.write_text(html.render(golden("win")), target)
    assert "2.31×" in target.read_text(encoding="utf-8")
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    odd = sample.win().model_copy(update={"warnings": ("a name from the file system: \udcff",)})
    html.write_text(html.render(odd), target)


def test_the_profile_page(tmp_path: Path, golden_profile: Profile) -> None:
    page = html.write_text(html.render(golden_profile), tmp_path / "profile.html").read_text(encoding="utf-8")
    assert "does not apply" in page
    assert "no prediction" in page
    assert 'download="profile.json.gz"' in page
    assert 'href="./profilers/torch/steps%204.pt.trace.json.gz"' in page
    assert "DataLoader" in page
    assert "nsys profile &lt;train&gt;" in page
    assert "/elsewhere/flame.svg" in page
    assert 'href="/elsewhere' not in page


@pytest.mark.parametrize("name", [*sample.DOCUMENTS, "profile"])
def test_golden_documents_are_written_as_they_were_read(name: str) -> None:
    """After a field was added to a record: ``python tests/sample.py``."""
    read = sample.profile() if name == "profile" else sample.result(name)
    assert read.model_dump_json() == sample.text(name)


BLOCKED = """
import sys
for name in ("torch", "numpy", "scipy", "networkx"):
    sys.modules[name] = None  # any import of it fails
from pathlib import Path
from autoopt.records import Result
from autoopt_reports import console, html, live
result = Result.model_validate_json(Path(sys.argv[1]).read_bytes())
html.write_text(html.render(result), Path(sys.argv[2]))
console.summary(result, console.console_for(sys.stdout))
print(sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("autoopt.")}))
"""


def test_a_report_needs_no_torch_and_nothing_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(sample.win().model_dump_json())
    out = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path / "result.json"), str(tmp_path / "report.html")],
        check=True, capture_output=True, text=True, timeout=120, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert out.splitlines()[-1].replace("'autoopt.errors', ", "") == "['autoopt.events', 'autoopt.records']"
    assert (tmp_path / "report.html").stat().st_size > 50_000
