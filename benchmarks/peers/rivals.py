"""Each tool as its own documentation runs it, and what it left behind.

A rival is a function of a workload, a fresh copy of its folder and the budget, and answers with an ``Outcome``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.fetching import HERE, SCRATCH, fetch
from benchmarks.peers.judge import UNTOUCHED, Side, one_run
from benchmarks.peers.processes import environment, run
from benchmarks.peers.workloads import Workload

BIN = Path(sys.executable).parent
TOOLS = Path(os.environ.get("PEERS_TOOLS", BIN))
"""Where train-doctor's command is installed; it needs no torch and runs the scripts with this interpreter."""


@dataclass(slots=True)
class Outcome:
    """A tool's run within the budget.

    Attributes:
        status: ``result`` (something to judge), ``nothing`` (it finished and changes nothing), ``stopped`` (the budget
            was over before it had a result), ``cannot`` (it cannot take this script), ``failed`` (it broke).
        seconds: how long it worked.
        said: its own words: what it claims, or why it cannot.
        patch: a unified diff against the script's folder.
        plan: a plan of autoopt's that puts the same changes on, where the tool has settings and no patch.
        more: details of its result.
    """

    status: str
    seconds: float
    said: str
    patch: str | None = None
    plan: list[dict[str, Any]] | None = None
    more: dict[str, Any] = field(default_factory=dict)


EARLIER = ("status", "seconds", "plan", "version")
"""Fields of a result that are kept of a search when the tool searches again."""


def place(workload: Workload, rival: str) -> Path:
    """The folder of one tool's work on one script."""
    return SCRATCH / "searched" / workload.name / rival


def copy_of(workload: Workload, rival: str, name: str = "tree") -> Path:
    """A fresh copy of the script's repository for one tool; the script's folder in it."""
    fetch(workload)
    root = place(workload, rival) / name
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(SCRATCH / "scripts" / workload.name, root)
    return root / workload.folder


def with_known_sites(workload: Workload) -> tuple[Path, Path] | None:
    """The untouched folder that autoopt watched, and the run that knows its sites: there plans are put on."""
    run_folder = place(workload, "autoopt") / "run"
    folder = place(workload, "autoopt") / "tree" / workload.folder
    return (folder, run_folder) if (run_folder / "result.json").exists() else None


def can_be_put_on(workload: Workload, change: dict[str, Any]) -> bool:
    """Whether a change can be put on this script from outside."""
    from autoopt.records import Plan
    from autoopt.records.reading import read_result
    from autoopt.registry import load_strategies
    from autoopt.script.sayable import unsayable

    known = with_known_sites(workload)
    sites = read_result(known[1]).sites if known else None
    if sites is None:
        return False
    setup = load_strategies().fold(Plan.model_validate({"changes": [change]}))
    return unsayable(setup, sites) is None


def by_autoopt(workload: Workload, folder: Path, budget: float) -> Outcome:
    """``autoopt optimize SCRIPT --budget B -- WORDS``, with the pattern of the metric that the script prints."""
    out = place(workload, "autoopt") / "run"
    shutil.rmtree(out, ignore_errors=True)
    metric = ["--metric", workload.metric] if workload.metric else []
    command = [
        str(BIN / "autoopt"),
        "optimize",
        workload.script,
        "--budget",
        f"{budget:.0f}s",
        "--out",
        str(out),
        *metric,
    ]
    command += ["--", *workload.words]
    ran = run(command, folder, environment(workload, folder), out.with_suffix(".log"), budget + 10, gentle=True)
    if not (out / "result.json").exists():
        return Outcome("cannot" if ran.code == 3 else "failed", ran.seconds, ran.said)
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    plan = result["best"]["plan"]["changes"]
    patch = out / "patch.diff"
    words = f"{result['stop']['reason']}: {result['stop']['detail']}" if not plan else json.dumps(plan)
    more = _table_of_script(result)
    if not plan:
        return Outcome("nothing", ran.seconds, words, more=more)
    text = patch.read_text(encoding="utf-8") if patch.exists() else None
    return Outcome("result", ran.seconds, words, patch=text, plan=plan, more=more)


def _table_of_script(result: dict[str, Any]) -> dict[str, Any]:
    """A run's row in the table of scripts: sites, changes tried, changes kept, changes in the patch."""
    sites = result.get("sites") or {}
    verdicts: dict[str, list[str]] = {}
    for trial in result["trials"]:
        verdicts.setdefault(trial["verdict"], []).append(trial["strategy"])
    speedup = result.get("speedup") or {}
    return {
        "sites": [[one["kind"], one["file"], one["line"]] for one in sites.get("sites", [])],
        "not_found": [f"{one['what']}: {one['then']}" for one in sites.get("not_found", [])],
        "verdicts": verdicts,
        "kept": [change["strategy"] for change in result["best"]["plan"]["changes"]],
        "patch": (result.get("patch") or {}).get("changes"),
        "throughput": speedup.get("throughput"),
        "time_to_target": speedup.get("time_to_target"),
        "end_to_end_verified": speedup.get("end_to_end_verified"),
        "load": (result.get("environment") or {}).get("load"),
        "warnings": result.get("warnings"),
    }


def by_train_doctor(workload: Workload, folder: Path, budget: float) -> Outcome:
    """``train-doctor fix -- python SCRIPT WORDS``, its quick start; what it has proven is a patch file."""
    command = [str(TOOLS / "train-doctor"), "fix", "--no-card", "--", sys.executable, workload.script, *workload.words]
    log = place(workload, "train-doctor") / "log.txt"
    ran = run(command, folder, environment(workload, folder), log, budget, gentle=True)
    patches = sorted((folder / ".train-doctor").rglob("*.patch"))
    claim = "\n".join(line for line in log.read_text(encoding="utf-8").splitlines() if not line.startswith("  ["))[
        -1500:
    ]
    if patches:
        return Outcome("result", ran.seconds, claim, patch=patches[-1].read_text(encoding="utf-8"))
    if ran.stopped:
        return Outcome("stopped", ran.seconds, claim)
    if ran.code:
        return Outcome("cannot" if "before its first measured step" in claim else "failed", ran.seconds, claim)
    return Outcome("nothing", ran.seconds, claim)


def by_loadtune(workload: Workload, folder: Path, budget: float) -> Outcome:
    """``loadtune tune FILE --apply`` on a ``get_workload()`` for the script, which its documentation asks for."""
    file = HERE / "loadtune" / f"{workload.name}.py"
    if not file.exists():
        why = "it takes no script but a get_workload() with dataset, model and step; none was written for this one"
        return Outcome("cannot", 0.0, why)
    shutil.copy(file, folder / "loadtune_workload.py")
    raw = place(workload, "loadtune") / "raw.json"
    raw.unlink(missing_ok=True)
    command = [sys.executable, "-m", "loadtune.cli", "tune", "loadtune_workload.py", "--save-raw", str(raw)]
    log = place(workload, "loadtune") / "log.txt"
    ran = run(command, folder, environment(workload, folder), log, budget)
    if not raw.exists():
        return Outcome("stopped" if ran.stopped else "failed", ran.seconds, ran.said)
    document = json.loads(raw.read_text(encoding="utf-8"))
    base = document["baseline"]["throughput"]
    tried = [one for one in document["trials"] if one["result"] and not one["result"].get("error")]
    best = max(tried, key=lambda one: one["result"]["throughput"], default=None)
    if best is None or best["result"]["throughput"] <= base:
        return Outcome("nothing", ran.seconds, ran.said[-500:])
    claim = f"{best['knobs']}: {best['result']['throughput'] / base:.2f}x by its own measurement"
    return Outcome("result", ran.seconds, claim, plan=_plan_of(best["knobs"]))


def _plan_of(knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings that loadtune tells a user to put in, as a plan."""
    plan: list[dict[str, Any]] = []
    if knobs["num_workers"]:
        loader = {"num_workers": knobs["num_workers"], "persistent_workers": knobs["persistent_workers"]}
        if knobs["prefetch_factor"]:
            loader["prefetch_factor"] = knobs["prefetch_factor"]
        plan.append({"strategy": "workers", "setting": loader})
    if knobs["num_threads"]:
        plan.append({"strategy": "threads", "setting": {"threads": knobs["num_threads"]}})
    if knobs["amp"]:
        plan.append({"strategy": "amp", "setting": {"dtype": "bfloat16"}})
    if knobs["compile"]:
        plan.append({"strategy": "compile", "setting": {"mode": "default"}})
    return plan


def by_pytorch_autotune(workload: Workload, folder: Path, budget: float) -> Outcome:
    """Its documentation asks for a CUDA device; without one it measures nothing, and that is said."""
    import torch

    if torch.cuda.is_available():
        return Outcome(
            "cannot", 0.0, "it takes a model and one batch in process; no such wrapper was written for this script"
        )
    return Outcome("cannot", 0.0, "its documentation: tuning requires a CUDA GPU; this machine has none")


def by_lightning_tuner(workload: Workload, folder: Path, budget: float) -> Outcome:
    """Lightning's ``Tuner.scale_batch_size``, where the script is Lightning's."""
    if not workload.kind.startswith("Lightning"):
        return Outcome("cannot", 0.0, "it takes a LightningModule alone")
    copied = folder / "tuned.py"
    text = (folder / workload.script).read_text(encoding="utf-8")
    call = "trainer.fit(model, train_dataloader, val_dataloader)"
    tuned = text.replace(
        call, "L.pytorch.tuner.Tuner(trainer).scale_batch_size(model, train_dataloader, val_dataloader)"
    )
    copied.write_text(tuned, encoding="utf-8")
    log = place(workload, "lightning-tuner") / "log.txt"
    ran = run([sys.executable, "tuned.py"], folder, environment(workload, folder), log, budget)
    if ran.code and not ran.stopped:
        return Outcome("cannot", ran.seconds, ran.said.strip().splitlines()[-1])
    return Outcome("stopped" if ran.stopped else "nothing", ran.seconds, ran.said[-500:])


KNOBS: dict[str, list[list[dict[str, Any]]]] = {
    "workers": [[], *([{"strategy": "workers", "setting": {"num_workers": n}}] for n in (1, 2))],
    "threads": [[], [{"strategy": "threads", "setting": {"threads": 1}}]],
    "amp": [[], [{"strategy": "amp", "setting": {"dtype": "bfloat16"}}]],
    "channels_last": [[], [{"strategy": "channels_last", "setting": {}}]],
    "fused": [[], [{"strategy": "fused_optimizer", "setting": {"implementation": "fused"}}]],
    "compile": [[], [{"strategy": "compile", "setting": {"mode": "default"}}]],
}
"""The knobs that Optuna gets, each with its values as changes of a plan."""


def by_optuna(workload: Workload, folder: Path, budget: float) -> Outcome:
    """Optuna's TPE over the same knobs, the objective being seconds of the judge's clock for a few steps."""
    import optuna

    known = with_known_sites(workload)
    if known is None:
        return Outcome("cannot", 0.0, "the script's sites are not known: autoopt has to watch it first")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    folder, file = known[0], known[1] / "plan-optuna-trial.json"
    knobs = {
        knob: [value for value in values if not value or can_be_put_on(workload, value[0])]
        for knob, values in KNOBS.items()
    }
    deadline = time.monotonic() + budget
    began = time.monotonic()

    def objective(trial: optuna.Trial) -> float:
        picked = [values[trial.suggest_int(knob, 0, len(values) - 1)] for knob, values in knobs.items()]
        chosen = [change for changes in picked for change in changes]
        trial.set_user_attr("plan", chosen)
        write_plan(file, chosen)
        found = one_run(workload, Side("optuna-trial", folder, file if chosen else None), deadline - time.monotonic())
        if "error" in found:
            trial.set_user_attr("error", found["error"])
            raise optuna.TrialPruned
        return float(found["seconds"])

    while time.monotonic() < deadline - 5:
        study.optimize(objective, n_trials=1)
    done = [one for one in study.trials if one.value is not None]
    more = {"trials": len(study.trials), "finished": len(done)}
    if not done:
        return Outcome("stopped", time.monotonic() - began, "no trial came to its last step", more=more)
    best = study.best_trial
    plan = best.user_attrs["plan"]
    said = f"{len(done)} of {len(study.trials)} trials came to an end; the best takes {best.value:.2f} s"
    return Outcome("result" if plan else "nothing", time.monotonic() - began, said, plan=plan or None, more=more)


TIPS = [change for values in KNOBS.values() for change in values[-1] if change["strategy"] != "threads"]
"""The switches of a page of tips: workers, mixed precision, channels-last, a fused optimizer, compile."""


def by_tips(workload: Workload, folder: Path, budget: float) -> Outcome:
    """Everything that a page of tips names and that can be put on this script, unmeasured."""
    if with_known_sites(workload) is None:
        return Outcome("cannot", 0.0, "the script's sites are not known: autoopt has to watch it first")
    plan = [change for change in TIPS if can_be_put_on(workload, change)]
    return Outcome("result", 0.0, f"on: {', '.join(change['strategy'] for change in plan)}", plan=plan)


RIVALS: dict[str, Callable[[Workload, Path, float], Outcome]] = {
    "autoopt": by_autoopt,
    "train-doctor": by_train_doctor,
    "loadtune": by_loadtune,
    "pytorch-autotune": by_pytorch_autotune,
    "lightning-tuner": by_lightning_tuner,
    "optuna": by_optuna,
    "tips": by_tips,
}


def write_plan(file: Path, changes: list[dict[str, Any]]) -> None:
    """A plan as a document of autoopt's."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"schema_version": 1, "changes": changes}), encoding="utf-8")


def search(workload: Workload, rival: str, budget: float, again: bool = False) -> Outcome:
    """One tool on one script, once: what an earlier call found is read, or told beside what is found ``again``."""
    file = place(workload, rival) / "outcome.json"
    earlier: list[dict[str, Any]] = []
    if file.exists() and again:
        before = json.loads(file.read_text(encoding="utf-8"))
        earlier = [*before.get("earlier", []), {key: before.get(key) for key in EARLIER}]
    elif file.exists():
        return Outcome(**{k: v for k, v in json.loads(file.read_text(encoding="utf-8")).items() if k in FIELDS})
    load = os.getloadavg()[0]
    outcome = RIVALS[rival](workload, copy_of(workload, rival), budget)
    document = {**asdict(outcome), "budget": budget, "load": load, "version": _version(rival), "earlier": earlier}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return outcome


def note(workload: Workload, rival: str, **more: Any) -> None:
    """Adds to what is written of a tool on a script."""
    file = place(workload, rival) / "outcome.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["more"] |= more
    file.write_text(json.dumps(document, indent=1), encoding="utf-8")


def put_on(patch: Path, folder: Path) -> str | None:
    """Puts a tool's diff on a copy of the script with ``git apply``; why not, where git refuses it."""
    done = subprocess.run(
        ["git", "apply", "--verbose", str(patch)],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(SCRATCH)},  # it lies in no repository
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else done.stderr.strip()


FIELDS = ("status", "seconds", "said", "patch", "plan", "more")


def _version(rival: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    package = {"lightning-tuner": "lightning", "autoopt": "torch-autoopt"}.get(rival, rival)
    try:
        return version(package)
    except PackageNotFoundError:
        return importlib.util.find_spec(rival) and "installed"  # an editable checkout has the package alone


__all__ = ["RIVALS", "UNTOUCHED", "Outcome", "copy_of", "note", "place", "put_on", "search", "write_plan"]
