"""The pages of measurements: made of the documents alone, and honest where a document is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.whole_runs import page as whole_runs_page

README = f"before\n{pages.README_MARKS[0]}\nold\n{pages.README_MARKS[1]}\nafter\n"
MACHINE = {"cpu": "a CPU", "cores": 2, "load": [0.5, 0.4, 0.3], "at": "2026-01-02T03:04:05+0000"}


def test_every_page_is_what_the_results_hold() -> None:
    assert pages.main(["--check"]) == 0, "python -m benchmarks.pages"


def test_without_results_no_page_has_a_figure(tmp_path: Path) -> None:
    found = pages.rendered(tmp_path, README)
    assert set(found) == {f"docs/measurements/{name}" for name in pages.PAGES} | {"README.md"}
    for name, text in found.items():
        assert "×" not in text, name
        assert "old" not in text.split()
    assert found["README.md"].startswith("before\n")
    assert found["README.md"].endswith("after\n")
    assert "No whole run has been measured" in found["README.md"]
    assert "No case has been run on a GPU" in found["docs/measurements/gpu.md"]


def test_whole_runs_fill_the_readme(tmp_path: Path) -> None:
    estimate = {"value": 1.5, "low": 1.4, "high": 1.6, "n": 5}
    changes = [{"strategy": "cache", "how": "patched"}, {"strategy": "allocator", "how": "by hand"}]
    searched = {"case": "vae", "revision": "0123456", "changes": changes}
    figures = {"speedup": {"patched": estimate, "expert": {**estimate, "value": 2.0}}, "score": None}
    judged = {"case": "vae", "revision": "0123456", "words": [], "patched": "search", "figures": figures, "runs": []}
    other = {**judged, "case": "ppo", "patched": "none"}
    rows = whole_runs_page.short_rows({"searches": [searched], "judgements": [judged, other]})
    assert rows == [["vae", "1.50× [1.40, 1.60]", "2.00× [1.40, 1.60]", "`cache`"]]
    assert "| vae | 1.50× [1.40, 1.60] |" in pages.table(["script"] * 4, rows)


def test_a_case_on_a_device_is_shown_and_a_toy_is_not(tmp_path: Path) -> None:
    def case(name: str, *, toy: bool, **more: Any) -> dict[str, Any]:
        return {"case": name, "toy": toy, "device": "cuda:0", **more}

    estimate = {"value": 2.0, "low": 1.9, "high": 2.1, "n": 3}
    cases = {
        "tiny": case("tiny", toy=False, autoopt={"time_to_target": estimate}),
        "cifar": case("cifar", toy=False),
        "bert": case("bert", toy=True, autoopt={"time_to_target": estimate}),
    }
    document = {"kind": "gpu_cases", "date": "2026-01-02", "cases": cases}
    (tmp_path / "a-device.json").write_text(json.dumps(document), encoding="utf-8")
    lines = pages.gpu(tmp_path).splitlines()
    found = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert "2.00× [1.90, 2.10] (3 pairs) to target on cuda:0" in found["tiny"]
    assert "ended before it was measured" in found["cifar"]
    assert found["bert"].endswith("not run |")


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (None, "not measured"),
        ({"value": 1.5, "low": None, "high": None, "n": 1}, "1.50× (1 pair)"),
        ({"value": 1.5, "low": 1.2, "high": 1.9, "n": 2}, "1.50× [1.20, 1.90] (2 pairs)"),
    ],
)
def test_a_speedup_has_its_interval_or_says_that_it_has_none(estimate: dict[str, Any] | None, text: str) -> None:
    assert pages.speedup(estimate) == text


def test_a_plan_of_many_changes_is_cut_with_a_count() -> None:
    assert pages.names([]) == "nothing kept"
    assert pages.names([{"strategy": name} for name in "abcdefg"]) == "`a`, `b`, `c`, `d`, `e` and 2 more"
