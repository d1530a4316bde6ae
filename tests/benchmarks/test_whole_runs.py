"""Whole runs: statistics of the judge, what it refuses, and that experts' edits train the same."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoopt.script.metric import direction_of
from autoopt.script.whole_run import Command
from benchmarks.gauntlet.cases import GAUNTLET
from benchmarks.whole_runs import cases, command, figures, judge, page, tools
from benchmarks.whole_runs.cases import WHOLE_RUNS, Case, CaseError, Suite, hashes
from modules import run_python

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--seed", type=int)
seed = parser.parse_args().seed
open("written", "w").close()
print("final metric: 0.1")
print(f"final metric: {0.5 + seed % 7}")
"""
CASE = Case("made_up", "final metric", "metric", True, 0.01, "a test")
CASES = WHOLE_RUNS.cases


def runs(**seconds: list[float | None]) -> list[dict[str, Any]]:
    """Runs of several rounds, a list of seconds for each side; None fails."""
    return [
        {
            "round": index,
            "side": side,
            "seconds": value,
            "metric": None if value is None else 0.9,
            "other_cpu_seconds": 0.0,
            "error": "ended with 1: boom" if value is None else None,
        }
        for side, values in seconds.items()
        for index, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("untouched", "other", "value", "low", "high"),
    [
        ([20.0], [10.0], 2.0, None, None),  # one round has no interval
        ([20.0, 40.0], [10.0, 20.0], 2.0, 2.0, 2.0),  # a drift that both sides share cancels
        ([20.0, 20.0], [10.0, 20.0], math.sqrt(2), 2**0.5 / 2**6.353, 2**0.5 * 2**6.353),  # 12.706 / sqrt(2) x s
        ([10.0, 10.0, 10.0], [20.0, 20.0, 20.0], 0.5, 0.5, 0.5),
    ],
)
def test_ratio_is_paired_by_round(
    untouched: list[float | None], other: list[float | None], value: float, low: float | None, high: float | None
) -> None:
    found = figures.ratio(figures.logarithms(runs(untouched=untouched, expert=other), "expert"))
    assert found["value"] == pytest.approx(value)
    assert found["n"] == len(untouched)
    for bound, given in ((found["low"], low), (found["high"], high)):
        assert bound == (None if given is None else pytest.approx(given, rel=1e-3))


@pytest.mark.parametrize(
    ("patched", "expert", "value"),
    [
        ([0.0, 0.0, 0.0], [0.4, 0.5, 0.6], 0.0),  # an empty patch
        ([0.4, 0.5, 0.6], [0.4, 0.5, 0.6], 1.0),  # the expert's own edit, whatever the machine did
        ([-0.2, -0.25, -0.3], [0.4, 0.5, 0.6], -0.5),
        ([0.1], [], None),
        ([], [0.1], None),
        ([0.1, 0.2], [-0.1, -0.2], None),  # no score without a gain of the expert
        ([0.1, 0.2], [0.0, 0.0], None),
    ],
)
def test_score_of_proportional_logarithms_is_exact(
    patched: list[float], expert: list[float], value: float | None
) -> None:
    found = figures.score(patched, expert)
    if value is None:
        assert found is None
        return
    assert found["value"] == found["low"] == found["high"] == pytest.approx(value)


def test_score_interval_covers_the_truth_as_stated() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        common = [rng.gauss(0, 0.05) for _ in range(5)]
        patched = [0.25 + one + rng.gauss(0, 0.05) for one in common]
        expert = [0.5 + one + rng.gauss(0, 0.05) for one in common]
        found = figures.score(patched, expert)
        covered += found["low"] is None or found["low"] <= 0.5 <= found["high"]
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.parametrize(
    ("claimed", "shown", "holds"),
    [(1.5, 1.5, True), (1.64, 1.5, True), (1.66, 1.5, False), (1.34, 1.5, False), (None, 1.5, None), (1.5, None, None)],
)
def test_claim_holds_within_a_tenth(claimed: float | None, shown: float | None, holds: bool | None) -> None:
    estimate = None if shown is None else {"value": shown}
    assert figures.claim_holds(claimed, estimate) is holds


def test_a_lost_metric_and_a_failed_side_have_no_score() -> None:
    good = runs(untouched=[20.0, 20.0], patched=[15.0, 15.0], expert=[10.0, 10.0])
    assert patched(good)["score"]["value"] == pytest.approx(math.log(4 / 3) / math.log(2))
    lost = [{**run, "metric": 0.8} if run["side"] == "patched" else run for run in good]
    assert patched(lost)["no_score"] == "patched: metric lost"
    failed = patched(runs(untouched=[20.0], patched=[None], expert=[10.0]))
    assert (failed["score"], failed["no_score"]) == (None, "patched: ended with 1: boom")


@pytest.mark.parametrize(("each", "within"), [((0.06, -0.03, -0.1, 0.49, 0.17), True), ((0.4, 0.5, 0.45), False)])
def test_a_metric_that_only_scatters_beyond_its_tolerance_is_not_lost(each: tuple[float, ...], within: bool) -> None:
    """An expert's edit that trains the same was said to lose 0.12 dB: rounding moves the end of each training."""
    judged = runs(untouched=[20.0] * len(each), patched=[15.0] * len(each), expert=[10.0] * len(each))
    judged = [{**run, "metric": 0.9 - (each[run["round"]] if run["side"] == "patched" else 0.0)} for run in judged]
    found = patched(judged)["quality"]
    assert (found["within"], found["worse"] > found["tolerance"]) == (within, True)


def patched(judged: list[dict[str, Any]], case: Case = CASE) -> dict[str, Any]:
    """The figures of the patched side."""
    return figures.summary(case, judged)["sides"]["patched"]


def test_a_run_that_misses_the_target_has_lost() -> None:
    case = Case("made_up", "final metric", "metric", True, 0.0, "a test", target=0.85)
    judged = runs(untouched=[20.0, 20.0], patched=[15.0, 15.0], expert=[10.0, 10.0])
    assert patched(judged, case)["no_score"] is None
    missed = [{**run, "metric": 0.84} if (run["side"], run["round"]) == ("patched", 1) else run for run in judged]
    assert patched(missed, case)["no_score"] == "patched: target missed"
    missed = [{**run, "metric": 0.84} if (run["side"], run["round"]) == ("untouched", 1) else run for run in judged]
    assert patched(missed, case)["no_score"] == "untouched: target missed"


def test_a_speedup_is_split_into_samples_and_seconds_a_sample() -> None:
    judged = runs(untouched=[24.0, 24.0], patched=[8.0, 8.0], expert=[6.0, 6.0])
    needed = {"untouched": 3000, "patched": 1500, "expert": 1000}
    judged = [{**run, "samples": needed[run["side"]], "first_seconds": 4.0} for run in judged]
    found = patched(judged)
    assert found["algorithmic"]["value"] == pytest.approx(2.0)
    assert found["exact"]["value"] == pytest.approx(1.5)
    assert found["without_start"]["value"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("result", "claim"),
    [
        ({"speedup": {"headline": {"kind": "same_steps", "value": 1.4}, "time_to_target": {"value": 2.0}}}, 1.4),
        ({"speedup": {"headline": None, "time_to_target": {"value": 2.0}}}, 2.0),
        ({"speedup": {}, "best": {"plan": {"changes": []}}}, 1.0),
        ({"speedup": {}, "best": {"plan": {"changes": [{"strategy": "workers"}]}}}, None),
    ],
)
def test_claim_is_the_headline_first(result: dict[str, Any], claim: float | None) -> None:
    assert tools.claim_of(result)["value"] == claim


def made_up(folder: Path, patched: str | None = SCRIPT) -> dict[str, judge.Side]:
    """The sides of a case of small scripts."""
    sides = {}
    for side, text in (("untouched", SCRIPT), ("expert", SCRIPT), ("patched", patched)):
        if text is not None:
            (folder / side).mkdir()
            (folder / side / "train.py").write_text(text, encoding="utf-8")
            sides[side] = judge.Side(folder / side, "train.py")
    return sides


def test_a_round_shares_its_seed_and_leaves_the_scripts_folders_alone(tmp_path: Path) -> None:
    sides = made_up(tmp_path)
    kept: list[int] = []
    found = judge.rounds(CASE, sides, tmp_path, 2, lambda runs: kept.append(len(runs)), rng=random.Random(1))
    assert kept == [3, 6]
    for index in (0, 1):
        mine = [run for run in found if run["round"] == index]
        assert {run["side"] for run in mine} == {"untouched", "patched", "expert"}
        assert len({run["seed"] for run in mine}) == len({run["metric"] for run in mine}) == 1
        assert all(run["seconds"] > 0 and run["other_cpu_seconds"] >= 0 for run in mine)
        assert mine[0]["metric"] == pytest.approx(0.5 + mine[0]["seed"] % 7)  # the last one printed
    assert found[0]["seed"] != found[3]["seed"]
    assert not any((side.tree / "written").exists() for side in sides.values())


@pytest.mark.parametrize(
    ("script", "error"),
    [("raise SystemExit('no data')", "ended with 1: no data"), ("print('done')", "printed no 'final metric'")],
)
def test_a_patched_script_that_fails_is_not_run_again(tmp_path: Path, script: str, error: str) -> None:
    found = judge.rounds(CASE, made_up(tmp_path, script), tmp_path, 3, lambda runs: None, rng=random.Random(0))
    assert [(run["round"], run["error"]) for run in found if run["side"] == "patched"] == [(0, error)]
    assert len([run for run in found if run["side"] == "expert"]) == 3


def test_the_end_of_the_start_and_the_samples_are_read(tmp_path: Path) -> None:
    script = "print('first step: 1')\nprint('samples seen: 12')\nprint('final metric: 2')"
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    case = Case("made_up", "final metric", "", True, 0.0, "", first="^first step", samples=r"samples seen: (\d+)")
    words = case.command("train.py", tmp_path, 1)
    assert (case.worse(0.9, 0.8), dataclasses.replace(case, higher=False).worse(0.9, 0.8)) == pytest.approx((0.1, -0.1))
    (found,) = judge.whole_runs(case, [Command(words, folder=tmp_path, variables=case.environment(tmp_path))])
    assert (found["samples"], found["metric"], found["error"]) == (12, 2.0, None)
    assert 0 < found["first_seconds"] <= found["seconds"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results in a folder of the test's own, by a revision of its own."""
    monkeypatch.setattr(cases, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "revision", lambda: "abc")
    return tmp_path / "whole_runs.json"


def run(*words: str) -> int:
    return command.main(WHOLE_RUNS, None, list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["judge", "nothing"], "unknown case 'nothing'; there are: graph_net, "),
        (["judge", "ppo"], "no patch: ppo was not searched by abc"),
        (["judge", "ppo", "--patched", "/nowhere"], "no patched script: /nowhere holds no train.py"),
        (["search", "nothing"], "unknown case 'nothing'"),
        (["search", "ppo", "--tools", "magic"], "unknown tool 'magic'; there are: autoopt, "),
        (["search", "ppo", "--tools", "tips"], "tips changes ppo where autoopt's search finds sites"),
    ],
)
def test_bad_input_is_one_clear_error(
    words: list[str], said: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHOLE_RUNS_CACHE", str(results.parent / "cache"))
    assert run(*words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not results.exists()


def test_nothing_is_repeated_by_the_same_revision_unless_asked(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = {"seconds": 1.0, "claim": None, "changes": [], "patch": "", "refused": None, "folder": ""}
    monkeypatch.setattr(command, "searched", lambda *_, **__: nothing)
    assert run("search", "ppo") == 0
    assert run("search", "ppo") == 2
    assert "the first one counts" in capsys.readouterr().err
    assert run("search", "ppo", "--tools", "tips") == 0  # another tool's first
    assert run("search", "ppo", "--again") == 0
    rows = json.loads(results.read_text(encoding="utf-8"))["searches"]
    assert [(row["tool"], row["again"]) for row in rows] == [("autoopt", False), ("tips", False), ("autoopt", True)]
    assert run("freeze") == 2
    assert "searches have run" in capsys.readouterr().err


def test_the_patch_of_a_run_is_put_on_a_copy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\n", encoding="utf-8")
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    assert tools.put_on(patch, tmp_path) is None
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == "a = 2\n"
    assert "patch does not apply" in str(tools.put_on(patch, tmp_path))


def test_the_page_shows_patches_in_full_and_what_was_not_measured() -> None:
    empty = page.render({"searches": [], "judgements": []})
    assert "No search has been judged yet." in empty
    assert "| ppo | `-` | - | - | - | - | - | - |" in empty
    claim = {"kind": "same_steps", "value": 1.9}
    searched = {"case": "ppo", "revision": "abc", "claim": claim, "patch": "--- a\n+++ b\n", "changes": []}
    searched |= {"budget": "4m", "exit_code": 0, "refused": None}
    row = {"case": "ppo", "revision": "abc", "patched": "search", "note": "", "words": []}
    row["runs"] = runs(untouched=[20.0, 20.0], patched=[15.0, 15.0], expert=[10.0, 10.0])
    text = page.render({"searches": [searched], "judgements": [row]})
    assert "1.90× same_steps | 1.33× [1.33, 1.33] | 2.00× [2.00, 2.00] | 0.42 [0.42, 0.42] | no |" in text
    assert "```diff\n--- a\n+++ b\n```" in text
    assert "Median score 0.42 of 1 scripts, 0 below 0; 0 of 1 claims within 10 %." in text


def test_a_script_in_a_folder_of_its_repository_is_hashed_there(tmp_path: Path) -> None:
    case = replace(CASES["ppo"], name="far", home=tmp_path, place="", below="examples/far", expert=None)
    (case.folder / case.below).mkdir(parents=True)
    (case.folder / case.below / case.script).write_text("print(1)")
    assert set(hashes(case)) == {case.script}


def test_an_edited_script_is_refused(tmp_path: Path) -> None:
    case = CASES["ppo"]
    suite = Suite("made_up", {"ppo": case}, tmp_path)
    with pytest.raises(CaseError, match="ppo is not frozen"):
        suite.check_frozen(case)
    edited = {"date": "2026-01-01", "cases": {"ppo": {**hashes(case), "train.py": "0" * 64}}}
    suite.freeze.write_text(json.dumps(edited), encoding="utf-8")
    with pytest.raises(CaseError, match=r"ppo: train.py changed since it was frozen on 2026-01-01"):
        suite.check_frozen(case)
    suite.freeze.write_text(json.dumps({**edited, "cases": {"ppo": hashes(case)}}), encoding="utf-8")
    suite.check_frozen(case)
    (tmp_path / "RULES.md").write_text("other rules", encoding="utf-8")
    with pytest.raises(CaseError, match=r"RULES.md changed"):
        suite.check_frozen(case)


@pytest.mark.parametrize("case", [*CASES.values(), *GAUNTLET.cases.values()], ids=lambda case: case.name)
def test_the_watched_metric_has_the_direction_of_the_judged_one(case: Case) -> None:
    assert direction_of(case.watched) == direction_of(case.metric) == ("max" if case.higher else "min")


LOSS = re.compile(r"loss\D{0,3}(\d+\.\d+)", re.I)
PATHS = {"graph_net": 0.1, "unet_files": 0.15}
"""How far apart printed losses may lie, relatively, where rounding is amplified or flips are drawn anew; else 1 %."""


def short(case: Case, script: str, folder: Path, data: Path) -> tuple[float, list[float]]:
    """The metric and the printed losses of a short run."""
    done = run_python(case.folder / script, "--data", data, "--seed", "3", *case.length, cwd=folder)
    output = done.stdout + done.stderr
    metric = case.read(output)
    assert metric is not None, output
    return metric, [float(value) for value in LOSS.findall(output)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_expert_trains_the_same(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    data = command.data_of(WHOLE_RUNS, case)
    metric, losses = short(case, "train.py", tmp_path, data)
    other, its = short(case, "expert.py", tmp_path, data)
    assert abs(case.worse(metric, other)) <= case.tolerance
    assert losses
    assert its == pytest.approx(losses, rel=PATHS.get(name, 0.01), abs=1e-4)
