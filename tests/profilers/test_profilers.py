"""Each profiler over a real small training: a summary and a file; what is missing is said."""

from __future__ import annotations

import gzip
import pstats
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import EnvironmentLacks
from autoopt.options import Options
from autoopt.profilers import tasks
from autoopt.profilers.tools import check_tools
from autoopt.records import Profile
from autoopt.records.protocol import TrialSpec
from autoopt.records.reading import read_document
from autoopt.registry import load_strategies
from autoopt.script.command import parse

SPEC = TrialSpec(workload=f"{Path(__file__).parents[1] / 'train' / 'train_workload.py'}:build")


SLOW_INPUT = """
import torch
from torch import nn
from torch.utils.data import Dataset
import autoopt

class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.randn(6)
        for _ in range(40):
            x = x + 0.0
        return x, index % 3

def build():
    return autoopt.Workload(model=nn.Linear(6, 3), train_data=Slow(), batch_size=8, loss=nn.CrossEntropyLoss(),
                            optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), max_epochs=4)
"""


@pytest.fixture
def live() -> Iterator[TrialContext]:
    made = TrialContext(SPEC, load_strategies())
    yield made
    made.close()


def test_tensorboards_plugin_reads_the_torch_trace(tmp_path: Path) -> None:
    """Most of a step is input: the plugin says so, and so does the summary."""
    consts = pytest.importorskip("torch_tb_profiler.consts")
    (tmp_path / "slow.py").write_text(SLOW_INPUT)
    live = TrialContext(TrialSpec(workload=f"{tmp_path / 'slow.py'}:build"), load_strategies())
    found = tasks.torch_profiler(live, str(tmp_path), 4)
    live.close()
    assert consts.WORKER_PATTERN.match(Path(found["file"]).name), "a name that the plugin looks for"
    trace = gzip.decompress(Path(found["file"]).read_bytes()).decode()
    assert {"forward", "backward", "optimizer"} <= set(re.findall(r'"name": "(\w+)"', trace))
    said = "\n".join(found["lines"])
    for part in ("a step takes", "%  DataLoader", "num_workers", f"tensorboard --logdir {tmp_path / 'torch'}"):
        assert part in said


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


def test_missing_tools_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacks, match="line_profiler is not installed"):
        check_tools(["lines"])


def test_a_profiler_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from autoopt.errors import TrialFailed
    from autoopt.running import profile

    def fails(*args: object) -> None:
        raise TrialFailed("error", "line_profiler could not look at the training")

    document = read_document(Path(__file__).parents[1] / "golden" / "profile.json", Profile)
    monkeypatch.setattr(profile, "profile", lambda *args, **options: document)
    monkeypatch.setattr(profile, "profile_with", fails)
    options = Options(out=tmp_path / "run", budget_seconds=60.0)
    (found,) = profile.profile_run(parse(SPEC.workload), options, tools=("lines",)).profilers
    assert (found.tool, found.file) == ("lines", None)
    assert found.lines[0] == "failed: line_profiler could not look at the training"


@pytest.mark.slow
def test_the_page_of_a_profile_shows_each(tmp_path: Path) -> None:
    from autoopt.cli import main

    run = tmp_path / "run"
    words = ["profile", SPEC.workload, "--with", "cprofile,memory", "--budget", "1m", "--out", str(run), "--quiet"]
    assert main(words) == 0
    page = (run / "profile.html").read_text(encoding="utf-8")
    assert 'href="./profilers/steps.prof"' in page
    assert "ncalls" in page
    assert "peak of Python&#39;s own allocations" in page
