"""Each profiler over a real small training: a summary and a file; what is missing is said."""

from __future__ import annotations

import pstats
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt import profilers
from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.profilers import check_tools, tasks
from autoopt.profilers.nsys import run_nsys, with_ranges
from autoopt.profilers.nvml import plot
from autoopt.registry import load_strategies
from autoopt.trial.protocol import TrialSpec

SPEC = TrialSpec(workload=f"{Path(__file__).parents[1] / 'train' / 'train_workload.py'}:build")


@pytest.fixture
def live() -> Iterator[TrialContext]:
    made = TrialContext(SPEC, load_strategies())
    yield made
    made.close()


def test_torch_trace_is_read_back(live: TrialContext, tmp_path: Path) -> None:
    found = tasks.torch_profiler(live, str(tmp_path), 3)
    assert Path(found["file"]).stat().st_size > 0
    assert any("a step takes" in line for line in found["lines"])
    assert any("tensorboard --logdir" in line for line in found["lines"])


def test_cprofile_can_be_opened(live: TrialContext, tmp_path: Path) -> None:
    found = tasks.cprofile(live, str(tmp_path), 3)
    assert pstats.Stats(found["file"]).total_calls > 100  # type: ignore[attr-defined]
    assert "ncalls" in found["lines"][0]


def test_lines_of_the_users_own(live: TrialContext, tmp_path: Path) -> None:
    pytest.importorskip("line_profiler")
    found = tasks.lines(live, str(tmp_path), 3)
    assert Path(found["file"]).exists()
    assert found["lines"]


def test_memory_by_line(live: TrialContext, tmp_path: Path) -> None:
    found = tasks.memory(live, str(tmp_path), 3)
    assert ".py:" in Path(found["file"]).read_text()
    assert "peak" in found["lines"][0]


@pytest.mark.slow
def test_flame_graph(live: TrialContext, tmp_path: Path) -> None:
    try:
        check_tools(["pyspy"])
        found = tasks.pyspy(live, str(tmp_path), 3)
    except EnvironmentLacks as error:
        pytest.skip(str(error))
    assert "<svg" in Path(found["file"]).read_text()


def test_nvml_says_that_it_needs_a_device(live: TrialContext, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="the training is on cpu"):
        tasks.nvml(live, str(tmp_path), 3)
    assert plot({"power": [(0.0, 1.0), (1.0, 4.0)]}).count("<polyline") == 1


def test_nsys_command_is_told_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    found = run_nsys(SPEC, tmp_path, 3)
    assert found["file"] is None
    assert "nsys profile" in found["lines"][1]


def test_ranges_are_named_as_the_stages(live: TrialContext) -> None:
    seen: list[str] = []
    training = live.training
    with_ranges(training, seen.append, lambda: None)
    training.step(training.next())
    assert seen == ["data", "forward", "backward", "optimizer"]


def test_missing_tools_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="there is no profiler 'gdb'"):
        check_tools(["gdb"])
    monkeypatch.setattr(profilers, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacks, match="line_profiler is not installed"):
        check_tools(["lines"])


def test_a_profiler_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from autoopt.errors import TrialFailed
    from autoopt.running import profile

    def fails(*args: object) -> None:
        raise TrialFailed("error", "py-spy could not look at the training")

    monkeypatch.setattr(profile, "profile_with", fails)
    found = profile._profiled(None, "pyspy", tmp_path)  # type: ignore[arg-type]
    assert (found.tool, found.file) == ("pyspy", None)
    assert found.lines[0] == "failed: py-spy could not look at the training"


@pytest.mark.slow
def test_the_page_of_a_profile_shows_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoopt.cli import main

    monkeypatch.setattr("shutil.which", lambda name: None)  # no nsys
    run = tmp_path / "run"
    words = ["profile", SPEC.workload, "--with", "cprofile,nsys", "--budget", "1m", "--out", str(run), "--quiet"]
    assert main(words) == 0
    page = (run / "profile.html").read_text(encoding="utf-8")
    assert 'href="./profilers/steps.prof"' in page
    assert "ncalls" in page
    assert "nsys profile --trace=cuda,nvtx,osrt" in page
