"""The cases of benchmarks/gpu at toy size on the CPU, and the race between their arms."""

from __future__ import annotations

import json
import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import Change, Plan, Result
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import race as gpu_race
from benchmarks.gpu import rivals
from benchmarks.gpu import table as gpu_table

ROOT = Path(__file__).parents[2]

PLAN = Plan(changes=(Change(strategy="threads", setting={"threads": 1}),))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The generated files go into a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of "all tips on" cost seconds to start, and none is needed to see that the loop is right."""
    plain = rivals.loader_of
    monkeypatch.setattr(rivals, "loader_of", lambda workload, *, tips, pin: plain(workload, tips=False, pin=False))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def case_of(name: str) -> types.ModuleType:
    if name == "bert":
        pytest.importorskip("transformers", reason="the case makes BERT from a configuration of transformers")
    return rivals.load_case(name)


@pytest.mark.parametrize("name", gpu.CASES)
def test_a_case_trains_in_every_arm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same weights; the samples come in another order, so that first losses are near, not equal."""
    case = case_of(name)
    plain = rivals.make("untouched", case, "cpu", toy=True)
    planned = rivals.make("autoopt", case, "cpu", toy=True, plan=PLAN)
    training = planned.training
    try:
        assert plain.step() == planned.step()
        assert float(plain.losses[0]) == pytest.approx(float(planned.losses[0]), rel=0.25)
        metrics = planned.evaluate()
        assert set(plain.evaluate()) == set(metrics) == {case.METRIC}
        assert math.isfinite(metrics[case.METRIC])
        assert training.workload.target.metric == case.METRIC
        assert all(math.isfinite(float(training.step(training.next()))) for _ in range(4))
    finally:
        training.close()
    monkeypatch.setattr(torch, "compile", lambda model: model)
    tips = rivals.make("all_tips", case, "cpu", toy=True)
    assert all(tips.step() > 0 for _ in range(3))
    assert math.isfinite(float(tips.losses[-1]))


def test_nothing_that_fits_is_a_result(tmp_path: Path) -> None:
    def optimize(*_: Any, **options: Any) -> Any:
        assert options["memory_limit"] == f"{case_of('llm_fit').TOY_MEMORY_LIMIT}B"
        raise WorkloadError("it does not fit", detail="as it is: out_of_memory: no room\namp: out_of_memory: nor here")

    case = gpu.run_case("llm_fit", minutes=1, device="cpu", toy=True, runs=tmp_path, optimize=optimize)
    assert case["fit"]["plan"] is None
    assert [row["outcome"] for row in case["fit"]["tried"]] == ["out_of_memory: no room", "out_of_memory: nor here"]
    assert "race" not in case


@pytest.fixture
def result() -> Result:
    return Result.model_validate_json((ROOT / "tests" / "golden" / "win.json").read_text(encoding="utf-8"))


def raced(*_: Any, **__: Any) -> dict[str, Any]:
    row = {"samples_per_second": 200.0, "peak_memory_bytes": 2**30}
    slow = {**row, "samples_per_second": 100.0, "over_autoopt": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 2}}
    blocks = {"untouched": slow, "all_tips": {"failed": "out_of_memory: no room"}, "autoopt": row}
    to_target = {"untouched": {"reached": False, "seconds": 9.0}, "autoopt": {"reached": True, "seconds": 4.0}}
    return {"blocks": blocks, "to_target": to_target}


def test_what_is_known_is_written_and_printed_as_it_goes(
    result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that is ended early leaves what it had."""
    out, states = tmp_path / "results" / "out.json", []
    runs = tmp_path / "runs"
    (runs / "tiny").mkdir(parents=True)
    (runs / "tiny" / "plan.json").write_text("{}")
    writer = gpu.Writer(out, toy=True, runs=runs)

    def race(*_: Any, tell: Any, **__: Any) -> dict[str, Any]:
        states.append(json.loads(out.read_text())["cases"]["tiny"]["state"])
        assert "verified end to end" in capsys.readouterr().out
        tell(raced())
        states.append(json.loads(out.read_text())["cases"]["tiny"]["state"])
        assert capsys.readouterr().out == "", "lines that may still change are not printed"
        return raced()

    case_document(result, runs, race=race, tell=writer)
    assert states == ["optimized", "racing"]
    assert json.loads(out.read_text())["cases"]["tiny"]["state"] == gpu.FINISHED
    assert "interleaved with" in capsys.readouterr().out
    assert (out.parent / "tiny-plan.json").read_text() == "{}"


def case_document(result: Result, tmp_path: Path, **changed: Any) -> dict[str, Any]:
    given = {"minutes": 1, "device": "cpu", "toy": False, "runs": tmp_path, "race": raced, **changed}
    return gpu.run_case("tiny", optimize=lambda spec, budget, **options: result, **given)


def test_what_is_printed_is_what_the_result_says(result: Result, tmp_path: Path) -> None:
    case = case_document(result, tmp_path)
    text = "\n".join(gpu_table.lines_of(case))
    assert [change["strategy"] for change in case["autoopt"]["kept"]] == list(result.best.plan.names())
    assert f"{result.speedup.time_to_target.value:.2f}×" in text
    for name in result.best.plan.names():
        assert f"kept {name}" in text
    said = ("out_of_memory: no room", "0.50× [0.40, 0.60]", "target not reached in 9 s", "to the target in 4.0 s")
    assert all(words in text for words in said)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "invalid choice"),
        (["tiny", "--minutes", "0"], "--minutes must be above 0"),
        (["tiny", "--arms", "x"], "no arm 'x'"),
        (["tiny", "--until", "1"], "needs --runs"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "llm_fit"])
def test_a_whole_case_from_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = [name, "--toy", "--device", "cpu", "--minutes", "0.5", "--arms", "untouched,autoopt"]
    files = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out.json")]
    assert gpu.main([*arguments, "--only", "threads,checkpointing", *files]) == 0
    printed = capsys.readouterr().out
    assert f"{name} on cpu, toy size" in printed
    case = json.loads((tmp_path / "out.json").read_text())["cases"][name]
    assert case["race"]["blocks"]["untouched"]["samples_per_second"] > 0
    assert case["autoopt"]["baseline"]["samples_per_second"] > 0


@pytest.mark.slow
def test_a_command_whose_time_is_up_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ["--toy", "--device", "cpu", "--minutes", "0.8", "--arms", "untouched,autoopt", "--only", "threads"]
    files = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out.json")]
    with pytest.raises(SystemExit) as ended:
        gpu.main(["tiny", *options, *files, "--until", "0.15"])
    assert ended.value.code == gpu.UNFINISHED
    assert (tmp_path / "runs" / "tiny" / "journal.jsonl").stat().st_size
    assert gpu.main(["tiny", *options, *files, "--until", "3"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["cases"]["tiny"]["state"] == gpu.FINISHED


# The race of benchmarks/gpu: autoopt's plan next to each rival, then all to the target, until a deadline.


@pytest.mark.slow
def test_rivals_are_interleaved_with_the_plan_and_one_that_breaks_says_so() -> None:
    ends, told = gpu_race.perf_counter() + 60.0, []
    with gpu_race.arms("tiny", PLAN, device="cpu", toy=True, deadline=ends) as start:

        def begin(arm: str) -> Any:
            if arm == "all_tips":
                raise TrialFailed("out_of_memory", "no room")
            return start(arm)

        rivals_ = ("untouched", "all_tips")
        found = gpu_race.interleaved(begin, PLAN, rivals_, deadline=ends, tell=lambda known: told.append(len(known)))
    assert found["autoopt"]["samples_per_second"] > 0
    assert found["untouched"]["over_autoopt"]["value"] > 0
    assert found["untouched"]["mode"] == "interleaved"
    assert found["all_tips"]["failed"].startswith("out_of_memory: no room")
    assert told == [2, 3]


def test_time_to_the_target_is_shared_out_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu_race, "perf_counter", lambda: now[0])
    asked: list[float] = []

    class Process:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def call(self, name: str, timeout: float, **arguments: Any) -> dict[str, Any]:
            asked.append(arguments["max_seconds"])
            now[0] += 50.0
            return {"seconds": 50.0, "reached": True, "metric": 0.9}

    start: Any = lambda name: Process()  # noqa: E731
    told: list[int] = []
    found = gpu_race.to_target(
        start, ("a", "b", "c"), 0.9, "accuracy", 5, deadline=90.0, tell=lambda known: told.append(len(known))
    )
    assert asked == [30.0, 20.0]
    assert found["c"] == {"failed": "not measured: the time was up"}
    assert told == [1, 2]
