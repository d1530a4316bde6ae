"""``autoopt bisect``: the first slow step of a history, from noisy comparisons, and its two kinds of history."""

from __future__ import annotations

import json
import subprocess
import zipfile
from math import log
from pathlib import Path

import numpy as np
import pytest

from autoopt.cli import main
from autoopt.comparing.bisection import SURE, Observation, bisect, commits, packages
from autoopt.errors import UsageError
from benchmarks.bisection.__main__ import planted
from tests.comparing.conftest import JOB, Git, committed


class Noisy:
    """Comparisons with normal noise, with a bad minute now and then."""

    def __init__(self, first: int, loss: float, seed: int, broken: tuple[int, ...] = ()) -> None:
        self._first, self._loss, self._broken = first, loss, broken
        self._rng = np.random.default_rng(seed)
        self.asked: list[int] = []

    def __call__(self, place: int, margin: float) -> Observation | None:
        self.asked.append(place)
        if place in self._broken:
            return None
        noise = self._rng.normal(0.0, 0.02) + (0.1 if self._rng.random() < 0.03 else 0.0)
        return Observation(place, (self._loss if place >= self._first else 0.0) + noise, 0.02)


def test_planted_steps_are_found_and_rarely_another_is_blamed() -> None:
    right = false = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 1])
        first, loss = int(rng.integers(1, 33)), log(1.0 - float(rng.uniform(0.05, 0.30)))
        found = bisect(32, Noisy(first, loss, seed), lambda: True)
        right += found.sure and found.place == first
        false += found.sure and found.place != first
    assert right >= 54
    assert false <= 3


def test_noisy_steps_are_asked_again_and_plain_ones_are_not() -> None:
    plain, small = Noisy(20, log(0.7), 1), Noisy(20, log(0.96), 1)
    assert bisect(32, plain, lambda: True).place == 20
    assert bisect(32, small, lambda: True).place in range(18, 23)
    assert len(plain.asked) == 1 + 5
    assert len(small.asked) > 2 + 5


def test_without_a_loss_nothing_is_blamed() -> None:
    found = bisect(32, Noisy(33, 0.0, 3), lambda: True)
    assert (found.place, found.sure, found.probabilities) == (None, False, ())
    assert len(found.asked) <= 4


def test_steps_that_cannot_be_run_are_skipped() -> None:
    measure = Noisy(20, log(0.8), 4, broken=(19, 20, 21))
    found = bisect(32, measure, lambda: True)
    assert not found.sure
    assert sum(found.probabilities[18:22]) > SURE
    assert max(measure.asked.count(place) for place in (19, 20, 21)) == 1


def test_time_that_is_up_leaves_what_is_likely() -> None:
    left = iter([True, True])
    found = bisect(32, Noisy(20, log(0.8), 5), lambda: next(left, False))
    assert not found.sure
    assert sum(found.probabilities[16:]) > 0.9
    assert sum(found.probabilities) == pytest.approx(1.0)


def test_one_step_is_the_one() -> None:
    assert bisect(1, Noisy(1, log(0.8), 6), lambda: True).sure


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_a_planted_regression_on_a_simulated_machine(kind: str) -> None:
    rows = [planted(kind, 8, seed) for seed in range(3)]
    assert sum(row["sure"] and row["found"] != row["place"] for row in rows) == 0
    assert sum(row["found"] == row["place"] for row in rows) >= 2


def test_commits_are_those_from_the_good_to_the_bad_one(git: Git) -> None:
    for number in range(4):
        committed(git, f"number = {number}\n", f"step {number}")
    found = commits("HEAD~3", "HEAD")
    assert [place.name.split(" ", 1)[-1] for place in found] == ["HEAD~3", "step 1", "step 2", "step 3"]
    with pytest.raises(UsageError, match="--good nowhere: no such revision"):
        commits("nowhere", "HEAD")
    with pytest.raises(UsageError, match="no commit leads from HEAD to HEAD~1"):
        commits("HEAD", "HEAD~1")


def wheel(folder: Path, name: str, version: str) -> None:
    """A package that knows its version."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"version = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_packages_change_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("one_aoq", "1"), ("one_aoq", "2"), ("two_aoq", "1"), ("two_aoq", "2")):
        wheel(tmp_path, name, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("one_aoq==1\ntwo-aoq==1  # pinned\nnumpy==1.0\n")
    bad.write_text("one_aoq==2\ntwo_aoq==2\nnumpy==1.0\n")
    with packages(good, bad) as places:
        assert [place.name for place in places][1:] == [
            "one-aoq: one_aoq==1 -> one_aoq==2",
            "two-aoq: two-aoq==1 -> two_aoq==2",
        ]
        script = "import one_aoq, two_aoq, autoopt; print(one_aoq.version, two_aoq.version)"
        seen = [subprocess.check_output([str(place.python), "-c", script], text=True).split() for place in places]
    assert seen == [["1", "1"], ["2", "1"], ["2", "2"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "count", "first", "options"),
    [
        pytest.param(JOB, JOB.replace("0.02", "0.05"), 7, 4, [], id="twice the step"),
        pytest.param(
            JOB.replace("0.02", "0.0"), JOB.replace("0.02", "0.0").replace("lr=0.1", "lr=0.001"), 5, 2, ["--quality"],
            id="trains a hundredth as fast",
        ),
    ],
)  # fmt: skip
def test_a_commit_is_found_live(
    before: str, after: str, count: int, first: int, options: list[str], git: Git, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(count):
        committed(git, (before if number < first else after) + f"number = {number}\n", f"step {number}")
    words = ["--good", f"HEAD~{count - 1}", "--budget", "4m", "--json", "--quiet", *options, "--", "job.py:build"]
    assert main(["bisect", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step"].endswith(f"step {first}"), document
    assert document["sure"]
    assert document["loss"] > 1.02 if options else document["speed"] < 0.7
