"""The command as a user runs it: real processes, a real run directory, every document of the contract."""

from __future__ import annotations

import json
import py_compile
from pathlib import Path

import pytest

from autoopt.cli import main
from autoopt.records import Plan, Result, Verdict
from autoopt.registry import load_strategies
from modules import autoopt, run_python

SHAPES = Path(__file__).parent / "workloads" / "shapes.py"
FIELDS = (
    "schema_version autoopt_version created finished seconds budget_seconds workload environment objective noise "
    "baseline best speedup break_even rounds trials ablation stop advice warnings"
)


def run(tmp_path: Path, shape: str, *words: str, budget: str = "30s") -> Result:
    out = tmp_path / "run"
    done = autoopt("optimize", f"{SHAPES}:{shape}", "--budget", budget, "--out", out, "--json", *words, cwd=tmp_path)
    document = json.loads(done.stdout)  # standard output is one document and nothing else
    assert document == json.loads((out / "result.json").read_text())
    assert set(FIELDS.split()) <= set(document)
    return Result.model_validate(document)


def check(result: Result, out: Path) -> None:
    """Assertions that hold of every run, whatever was found."""
    assert result.baseline.samples_per_second
    assert result.baseline.plan == Plan()
    assert result.stop.reason
    names = set(load_strategies())
    assert {trial.strategy for trial in result.trials} <= names
    assert all(trial.reason for trial in result.trials if trial.verdict is not Verdict.KEPT)
    assert json.loads((out / "plan.json").read_text())["changes"] == [
        change.model_dump() for change in result.best.plan.changes
    ]
    py_compile.compile(str(out / "optimized_train.py"), doraise=True)
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list((out / "logs").glob("*.log"))
    assert result.speedup.throughput is None or result.speedup.throughput.low > 0


def test_one_run_writes_every_document_and_cannot_be_run_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path, "dict_batch", "--only", "threads,pin_memory")
    check(result, tmp_path / "run")
    assert result.objective.target == 0.85
    assert "autoopt optimize" in result.reproduce.command
    out = str(tmp_path / "run")
    assert main(["optimize", f"{SHAPES}:dict_batch", "--budget", "30s", "--out", out]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(["resume", out]) == 2
    assert "finished" in capsys.readouterr().err
    assert main(["report", out]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["own_sampler", "stream", "dict_batch", "scheduled", "no_target_value"])
def test_workloads_of_every_shape(tmp_path: Path, shape: str) -> None:
    result = run(tmp_path, shape, "--skip", "compile", budget="90s")
    check(result, tmp_path / "run")
    if shape == "no_target_value":
        assert result.objective.target_source == "baseline"


@pytest.mark.slow
def test_a_plain_script_without_a_guard_does_as_the_command(tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(
        f"import sys; sys.path.append({str(SHAPES.parent)!r})\n"
        "import autoopt, shapes\n"
        "def build():\n"
        "    return shapes.scheduled()\n"
        "result = autoopt.optimize(build, budget='25s', only='threads', out='run')\n"
        "print(len(result.best.plan.changes), result.speedup.end_to_end_verified)\n"
    )
    done = run_python(script, cwd=tmp_path, timeout=200)
    assert len(done.stdout.splitlines()) == 1, "trials imported what stands above the call, and no more"
    assert (tmp_path / "run" / "report.html").is_file()


LARGE = Path(__file__).parent / "workloads" / "large.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "limit", "fits_by"), [("build", "1.25MB", "accumulation"), ("normed", "1.5MB", "checkpointing")]
)
def test_what_does_not_fit_ends_with_a_plan_that_does_and_the_same_batch(
    tmp_path: Path, build: str, limit: str, fits_by: str
) -> None:
    """Tensors counted against a limit on the CPU: untouched it runs out of memory, and is never the reference."""
    out = tmp_path / "run"
    words = ("--memory-limit", limit, "--only", "accumulation,checkpointing,threads", "--out", out, "--json")
    done = autoopt("optimize", f"{LARGE}:{build}", "--budget", "60s", *words, cwd=tmp_path)
    result = Result.model_validate_json(done.stdout)
    (reference,) = result.baseline.plan.changes
    assert reference.strategy == fits_by
    if fits_by == "accumulation":
        assert reference.setting["size"] * reference.setting["accumulation"] == result.workload.batch_size == 256
    assert reference in result.best.plan.changes
    assert result.baseline.samples_per_second
    assert result.baseline.peak_memory_bytes
    assert result.environment.device_memory_bytes
    assert result.baseline.peak_memory_bytes <= 0.95 * result.environment.device_memory_bytes
    assert any("does not fit in memory (out_of_memory:" in text for text in result.warnings)
    words = ("--budget", "30s", "--memory-limit", "300KB")
    tried = autoopt("optimize", f"{LARGE}:{build}", *words, cwd=tmp_path, codes=(3,))
    assert "nothing that was tried makes it fit" in tried.stderr
    assert "as it is: out_of_memory:" in tried.stderr
