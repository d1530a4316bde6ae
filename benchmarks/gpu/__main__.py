"""autoopt on the cases that the field quotes, each beside what one would do without it.

    python -m benchmarks.gpu resnet50 --minutes 8           # also: bert, gpt2, llm_fit, cifar, tiny
    python -m benchmarks.gpu tiny --minutes 1 --toy --device cpu   # the same at toy size: a check of the code

Everything is generated on the machine; no network is used. What came out is printed, and added to
benchmarks/results/<device>-<date>.json (toys: only where --out says so), of which ``benchmarks.pages`` makes a page.
The file is written again whenever more is known, so that a command that is ended early leaves what it had.
With --out FILE the report, the plan and the script are copied beside FILE.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in (".", "strategies", "reports")]  # a checkout need not be installed

from autoopt.errors import WorkloadError  # noqa: E402
from benchmarks.documents import RESULTS, load, parser_of, save  # noqa: E402
from benchmarks.gpu import race as gpu_race  # noqa: E402
from benchmarks.gpu import rivals  # noqa: E402
from benchmarks.gpu import table as gpu_table  # noqa: E402

CASES = ("resnet50", "bert", "gpt2", "llm_fit", "cifar", "tiny")
OPTIMIZE_SHARE = 0.65
"""Of the minutes; the rest is for the arms side by side."""
LEAST_RACE_SHARE = 0.2
"""Of the minutes, whatever came before."""
FINISHED = "finished"
UNFINISHED = 75
"""Exit code of a command whose time was up: the same command goes on."""
CLOSING_SECONDS = 20.0
"""Kept back of a command's time for ending what runs."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_case(
    name: str,
    *,
    minutes: float,
    device: str,
    toy: bool,
    runs: Path,
    optimize: Callable[..., Any] | None = None,
    arms: Sequence[str] = rivals.ARMS,
    race: Callable[..., dict[str, Any]] | None = None,
    options: dict[str, Any] | None = None,
    ends: float = float("inf"),
    tell: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Runs one case: optimizes it, and races the plan against its rivals.

    Args:
        minutes: for all of it.
        runs: the folder for the run directory.
        optimize, race: in place of ``optimized`` and ``race_of`` (tests).
        options: further options of ``autoopt.optimize``.
        ends: on ``perf_counter``: when this command ends, whatever has come of it.
        tell: given the document whenever there is more in it; ``state`` says how far it has come.

    Returns:
        The case's document.
    """
    began = time.perf_counter()
    seconds = 60 * minutes
    case = rivals.load_case(name)
    spec = f"{rivals.CASES / (name + '.py')}:{'build_toy' if toy else 'build'}"
    if hasattr(case, "jpeg_files"):
        say("writing the JPEG files ...")
        case.jpeg_files(case.TOY if toy else case.FULL)
    document: dict[str, Any] = {"case": name, "toy": toy, "minutes": minutes, "device": device, "metric": case.METRIC}
    chosen = dict(options or {})

    def report(state: str) -> None:
        document.update(state=state, seconds=time.perf_counter() - began)
        tell(document)

    if name == "llm_fit" and toy and device == "cpu":
        chosen["memory_limit"] = f"{case.TOY_MEMORY_LIMIT}B"
    budget = f"{max(round(OPTIMIZE_SHARE * (seconds - (time.perf_counter() - began))), 1)}s"
    try:
        result = (optimize or optimized)(spec, budget, device=device, out=str(runs / name), **chosen)
    except WorkloadError as error:
        if name != "llm_fit":
            raise
        document["fit"] = {"plan": None, "untouched_fits": False, "tried": tried_lines(error.detail)}
        report(FINISHED)
        return document
    if name == "llm_fit":
        document["fit"] = fit_of(result)
    document["autoopt"] = gpu_table.of_result(result)
    document["environment"] = result.environment.model_dump()
    report("optimized")

    def raced(found: dict[str, Any]) -> None:
        document["race"] = found
        report("racing")

    left = max(seconds - (time.perf_counter() - began), LEAST_RACE_SHARE * seconds)
    left = min(left, ends - time.perf_counter() - CLOSING_SECONDS)
    document["race"] = (race or race_of)(
        name, result, device=device, toy=toy, seconds=left, arms=tuple(arms), tell=raced
    )
    report(FINISHED)
    return document


def optimized(spec: str, budget: str, **options: Any) -> Any:
    """``autoopt.optimize`` with its progress on standard error; a run that is there already is gone on with."""
    from autoopt.api import optimize, resume_run
    from autoopt_reports import html
    from autoopt_reports.live import make_view

    folder = Path(options["out"])
    found = finished(folder)
    if found is not None:
        return found
    with make_view(sys.stderr) as view:
        if not (folder / "journal.jsonl").exists():
            return optimize(spec, budget, listeners=[view], **options)
        say(f"going on with {folder} ...")
        result = resume_run(folder, listeners=[view])
    html.write_text(html.render(result), folder / "report.html")
    return result


def finished(folder: Path) -> Any:
    """The result of a run that has ended by itself, or None."""
    from autoopt.records import Result, StopReason

    file = folder / "result.json"
    if not file.exists():
        return None
    result = Result.model_validate_json(file.read_text(encoding="utf-8"))
    return None if result.stop.reason is StopReason.INTERRUPTED else result


def fit_of(result: Any) -> dict[str, Any]:
    """How the engine made the workload fit: the baseline's plan, and what did not do before."""
    plan, tried = result.baseline.plan, []
    for trial in result.trials if plan.changes else ():
        if trial.round == 0 and trial.throughput is None and trial.reason.startswith(("out_of_memory", "memory:")):
            names = [change.strategy for change in trial.companions] + [trial.strategy]
            tried.append({"plan": names, "outcome": trial.reason})
    return {"plan": list(plan.names()), "untouched_fits": not plan.changes, "tried": tried}


def tried_lines(detail: str) -> list[dict[str, Any]]:
    """Lines of the error of a workload that nothing makes fit: ``plan: why not`` each."""
    pairs = (line.partition(": ") for line in detail.splitlines())
    return [{"plan": [plan], "outcome": outcome} for plan, _, outcome in pairs]


def race_of(
    name: str,
    result: Any,
    *,
    device: str,
    toy: bool,
    seconds: float,
    arms: tuple[str, ...],
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """autoopt's plan next to its rivals, interleaved; then all of them to the target, if there is one.

    Args:
        seconds: what is left for it.
        tell: given what is known after each comparison.
    """
    began, plan, target = time.perf_counter(), result.best.plan, result.objective.users_target
    document: dict[str, Any] = {}

    def more(part: str, found: dict[str, Any]) -> None:
        document[part] = dict(found)
        tell(document)

    with gpu_race.arms(name, plan, device=device, toy=toy, deadline=began + seconds) as start:
        others = tuple(arm for arm in arms if arm != gpu_race.OURS)
        ends = began + (0.5 if target is not None else 1.0) * seconds
        more("blocks", gpu_race.interleaved(start, plan, others, deadline=ends, tell=partial(more, "blocks")))
        if target is not None and result.objective.mode == "max":
            running = tuple(arm for arm in arms if "failed" not in document["blocks"].get(arm, {}))
            metric, every = str(result.objective.metric), result.workload.steps_per_epoch or 50
            ends = began + seconds
            tell_more = partial(more, "to_target")
            more("to_target", gpu_race.to_target(start, running, target, metric, every, deadline=ends, tell=tell_more))
    return document


def add(file: Path, case: dict[str, Any]) -> None:
    """Puts a case into the document of its device and day, in place of an earlier run of the same case."""
    document = {"kind": "gpu_cases", "date": time.strftime("%Y-%m-%d"), "cases": {}, **load(file)}
    document["cases"][case["case"]] = case
    save(file, document)


def results_file(case: dict[str, Any]) -> Path:
    """``<device>-<date>.json`` in benchmarks/results."""
    name = (case.get("environment") or {}).get("device_name") or case["device"]
    slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    return RESULTS / f"{slug}-{time.strftime('%Y-%m-%d')}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("benchmarks.gpu", __doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--minutes", type=float, default=8.0, help="for the whole case [default: 8]")
    parser.add_argument("--toy", action="store_true", help="a few samples through a few layers: a check of the code")
    parser.add_argument("--device", default="cuda", help="auto, cpu, cuda, cuda:1 [default: cuda]")
    parser.add_argument("--arms", default=",".join(rivals.ARMS), help="a part of them")
    parser.add_argument("--only", default="", help="strategies to try, as of autoopt optimize")
    parser.add_argument("--runs", type=Path, help="folder for the run directories; a run that is there is gone on with")
    parser.add_argument("--until", type=float, help="minutes after which this command ends, for the next to go on")
    parser.add_argument("--out", type=Path, help="the results [default: benchmarks/results/<device>-<date>.json]")
    given = parser.parse_args(arguments)
    if given.minutes <= 0:
        parser.error("--minutes must be above 0")
    if given.until is not None and (given.until <= 0 or not given.runs):
        parser.error("--until must be above 0, and needs --runs, where the next command finds what this one did")
    unknown = set(given.arms.split(",")) - set(rivals.ARMS)
    if unknown:
        parser.error(f"no arm {sorted(unknown)[0]!r}; there are {', '.join(rivals.ARMS)}")
    from autoopt.benchmark.device import resolve_device
    from autoopt.errors import AutooptError

    runs = given.runs or Path(tempfile.mkdtemp(prefix="autoopt-gpu-"))
    runs.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays behind
    ends = time.perf_counter() + 60 * given.until if given.until else float("inf")
    if given.until:
        signal.signal(signal.SIGALRM, _time_is_up)
        signal.setitimer(signal.ITIMER_REAL, 60 * given.until)
    writer = Writer(given.out, toy=given.toy, runs=runs)
    try:
        run_case(
            given.case,
            minutes=given.minutes,
            device=str(resolve_device(given.device)),
            toy=given.toy,
            runs=runs,
            arms=given.arms.split(","),
            options={"only": given.only} if given.only else None,
            ends=ends,
            tell=writer,
        )
    except AutooptError as error:
        say(f"error: {error}")
        return error.exit_code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _time_is_up(*_: Any) -> None:
    say("the time of this command is up; the same command goes on where it was")
    sys.exit(UNFINISHED)


class Writer:
    """Prints each part of a case as soon as it is known, and writes the document again.

    Args:
        out: the file; that of the device and day in benchmarks/results where None (a toy: nowhere).
        runs: the folder of the run directories.
    """

    def __init__(self, out: Path | None, *, toy: bool, runs: Path) -> None:
        self._out, self._toy, self._runs = out, toy, runs
        self._printed = 0

    def __call__(self, case: dict[str, Any]) -> None:
        lines = gpu_table.lines_of(case, finished=case["state"] == FINISHED)
        print("\n".join(lines[self._printed :]), end="\n" if lines[self._printed :] else "", flush=True)
        self._printed = max(self._printed, len(lines))
        file = self._out or (None if self._toy else results_file(case))
        if file is None or (self._out is None and "environment" not in case):
            return  # not known yet which device's file it belongs to
        add(file, case)
        if self._out is not None and "autoopt" in case:
            for name in ("report.html", "plan.json", "optimized_train.py"):
                if (self._runs / case["case"] / name).exists():
                    shutil.copyfile(self._runs / case["case"] / name, file.parent / f"{case['case']}-{name}")
        if case["state"] == FINISHED:
            say(f"written to {file}")


if __name__ == "__main__":
    sys.exit(main())
