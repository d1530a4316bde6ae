"""The pages of measurements: made of the documents alone, and honest where a document is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.testing.method_cards import method_card, shipped
from benchmarks import pages
from benchmarks.documents import RESULTS, load
from benchmarks.gauntlet import page as gauntlet_page
from benchmarks.whole_runs import page as whole_runs_page

README = f"before\n{pages.README_MARKS[0]}\nold\n{pages.README_MARKS[1]}\nafter\n"
MACHINE = {"cpu": "a CPU", "cores": 2, "load": [0.5, 0.4, 0.3], "at": "2026-01-02T03:04:05+0000"}


def test_every_page_is_what_the_results_hold() -> None:
    assert pages.main(["--check"]) == 0, "python -m benchmarks.pages"


def test_without_results_no_page_has_a_figure(tmp_path: Path) -> None:
    found = pages.rendered(tmp_path, README)
    assert set(found) == {f"docs/{name}" for name in pages.PAGES} | {"README.md"}
    for name, text in found.items():
        assert "×" not in text, name
        assert "old" not in text.split()
    assert found["README.md"].startswith("before\n")
    assert found["README.md"].endswith("after\n")
    assert "No whole run has been measured" in found["README.md"]
    assert "No case has been run on a GPU" in found["docs/measurements/gpu.md"]


def runs(**seconds: float) -> list[dict[str, Any]]:
    """Two rounds of these sides."""
    one = {"metric": 1.0, "other_cpu_seconds": 0.0, "error": None, "first_seconds": 2.0, "samples": 100}
    return [{**one, "round": index, "side": side, "seconds": s} for side, s in seconds.items() for index in (0, 1)]


def searched(case: str, **more: Any) -> dict[str, Any]:
    found = {"case": case, "revision": "0123456", "changes": [], "claim": None, "patch": "--- a", "refused": None}
    return {**found, "environment": MACHINE, **more}


def judged(case: str, **more: Any) -> dict[str, Any]:
    row = {"case": case, "revision": "0123456", "words": [], "patched": "search", "note": "", "environment": MACHINE}
    return {**row, **more}


def test_whole_runs_fill_the_readme(tmp_path: Path) -> None:
    changes = [{"strategy": "cache", "how": "patched"}, {"strategy": "allocator", "how": "by hand"}]
    row = judged("vae", runs=runs(untouched=30.0, patched=20.0, expert=15.0))
    other = {**row, "case": "ppo", "patched": "none"}
    document = {"searches": [searched("vae", changes=changes)], "judgements": [row, other]}
    rows = whole_runs_page.short_rows(document)
    assert rows == [["vae", "1.50× [1.50, 1.50]", "2.00× [2.00, 2.00]", "`cache`"]]
    assert "| vae | 1.50× [1.50, 1.50] |" in pages.table(["script"] * 4, rows)


def test_the_gauntlet_shows_scores_rivals_placebos_and_machines() -> None:
    laptop = {**MACHINE, "cpu": "a laptop's CPU", "cores": 8}
    rows = [
        judged("jpegs", runs=runs(untouched=40.0, patched=20.0, expert=10.0, optuna=40.0), tools=["autoopt", "optuna"]),
        judged("jpegs", runs=runs(untouched=40.0, patched=10.0, expert=10.0), environment=laptop),
    ]
    searches = [
        searched("jpegs"),
        searched("jpegs", environment=laptop),
        searched("jpegs", tool="optuna"),
        searched("jpegs-placebo"),
        searched("airbench-placebo", patch=""),
    ]
    lines = gauntlet_page.render({"searches": searches, "judgements": rows}).splitlines()
    first = next(line for line in lines if line.startswith("| jpegs |"))
    assert "| 2.00× [2.00, 2.00] | 0.50 [0.50, 0.50] | 4.00× [4.00, 4.00] |" in first
    assert "| 2 cores of a CPU | `0123456` | - | airbench | jpegs |" in lines
    assert "| optuna | 1 | 2.00× (n=1, no interval) |" in lines
    assert "| 2 cores of a CPU | jpegs | `0123456` | 0.50 [0.50, 0.50] |" in "\n".join(lines)
    assert "| 8 cores of a laptop's CPU | jpegs | `0123456` | 1.00 [1.00, 1.00] |" in "\n".join(lines)


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


# A strategy's card says that nothing has kept it, unless a recorded run or benchmark has.

NOT_KEPT = "No run and no benchmark has kept it so far."


def planned(document: Any) -> Iterator[str]:
    """Strategies in the plans of a document, and in the changes that were measured as an answer."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        if key in ("plan", "changes") and isinstance(value, list):
            yield from (change["strategy"] for change in value if isinstance(change, dict) and "strategy" in change)
        elif key != "trials":
            yield from planned(value)


def test_what_was_kept_does_not_say_otherwise() -> None:
    found = {name for file in RESULTS.glob("*.json") for name in planned(load(file))}
    assert {"workers", "threads", "amp"} <= found
    says_not = {strategy.name for strategy in shipped() if NOT_KEPT in method_card(strategy)[""]}
    assert says_not
    assert not found & says_not
