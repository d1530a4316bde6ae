"""The tools: what each makes of a copy of a case's script within its budget, in the form of a tree that can be run.

A tool is a function of its work and answers with a record. ``status`` is ``result`` (there is a tree to judge),
``nothing`` (it changes nothing), ``stopped`` (the budget was over before it had a result), ``cannot`` (it takes no such
script) or ``failed`` (it broke).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.script.whole_run import Command, end
from benchmarks.documents import ROOT
from benchmarks.whole_runs.cases import Case, CaseError
from benchmarks.whole_runs.data import cache
from benchmarks.whole_runs.judge import Side, whole_runs

GRACE = 20.0
"""Seconds that a tool gets after its budget, from the first interrupt, to write down what it has."""
INSTALLED = {"train-doctor": "train-doctor==0.2.0", "fournex": "fournex==0.3.1", "loadtune": "loadtune==0.3.0"}
Record = dict[str, Any]
Changes = list[dict[str, Any]]


def _named(file: str | None) -> str | None:
    """A file without the folders of this machine, where it lies outside of the script's own."""
    return None if file is None else file.rpartition("/site-packages/")[2].removeprefix(f"{ROOT}/")


def revision() -> str:
    """The revision of this tree; what is not committed is marked, as no one else can have it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", "autoopt", "strategies") else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Work:
    """One tool's work on one case.

    Attributes:
        folder: of this work; ``tree`` in it is for the tool, ``patched`` for its result.
        budget: seconds.
    """

    case: Case
    data: Path
    seed: int
    budget: float
    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def patched(self) -> Path:
        return self.folder / "patched"

    @property
    def command(self) -> list[str]:
        """The command of the untouched script, in the tree's folder."""
        return self.case.command(self.script, self.data, self.seed)

    @property
    def script(self) -> str:
        """A script that stands alone is called train.py, whichever file it comes from."""
        return self.case.script if self.case.below else "train.py"

    def copy(self, to: Path) -> None:
        """The untouched files."""
        if self.case.below:
            shutil.copytree(self.case.folder, to)
        else:
            to.mkdir(parents=True)
            shutil.copy(self.case.folder / self.case.script, to / "train.py")

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, bool, str]:
        """Runs a tool in the tree; at its limit it is interrupted, as a user would.

        Returns:
            Its exit code, whether it was interrupted, and what it printed.
        """
        log = self.folder / "log.txt"
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command,
                cwd=self.tree / self.case.below,
                env={**self.case.environment(self.tree), **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
                start_new_session=True,
            )
            stopped = False
            try:
                process.wait(self.budget + GRACE)
            except subprocess.TimeoutExpired:
                stopped = True
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            finally:
                end(process)
                code = process.wait()
        return code, stopped, log.read_text(encoding="utf-8", errors="replace")


def searched(tool: str, case: Case, data: Path, budget: float, seed: int, number: int, known: Path | None) -> Record:
    """One tool's work on a copy of the script.

    Args:
        number: of its works on this case by this revision.
        known: the run directory of autoopt's search of the case, which knows where a change goes; None without one.

    Raises:
        CaseError: the tool puts its changes where autoopt's search found them, and there was none.
    """
    folder = cache() / "searches" / f"{case.name}-{tool}-{revision()}-{number}"
    if folder.exists():
        shutil.rmtree(folder)
    work = Work(case, data, seed, budget, folder)
    work.copy(work.tree)
    work.copy(work.patched)
    began = time.monotonic()
    record: Record = {"patch": "", "variables": {}, "changes": [], "claim": None, "refused": None}
    if tool in PUT_ON:
        if known is None:
            raise CaseError(f"{tool} changes {case.name} where autoopt's search finds sites: search with autoopt first")
        record |= PUT_ON[tool](work, known)
    else:
        record |= TOOLS[tool](work)
    if record["patch"].strip():
        record["refused"] = put_on(record["patch"], work.patched / case.below)
    elif record["status"] == "result" and not record["variables"]:
        record["status"] = "nothing"
    said = str(record.get("said", "")).replace(f"{cache()}/", "")  # results do not name a machine's folders
    place = folder.relative_to(cache()).as_posix()
    return record | {"said": said, "seconds": time.monotonic() - began, "folder": place, "budget": f"{budget:.0f}s"}


def by_autoopt(work: Work) -> Record:
    """``autoopt optimize SCRIPT --budget B -- WORDS``, with the metric that the script prints."""
    target = [] if work.case.target is None else ["--target", str(work.case.target)]
    metric = ["--metric", work.case.watched] if work.case.watched else []
    options = ["--budget", f"{work.budget:.0f}s", "--out", str(work.folder / "run"), *metric, *target]
    command = [sys.executable, "-m", "autoopt", "optimize", work.script, *options, "--", *work.command[2:]]
    paths = [str(ROOT), str(ROOT / "strategies"), str(ROOT / "reports")]
    paths += filter(None, [work.case.environment(work.tree).get("PYTHONPATH"), os.environ.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(paths)}
    code, _, output = work.run(command, own)
    file = work.folder / "run" / "result.json"
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    status = "cannot" if code == 3 else "failed" if result is None else "result"
    last = output.strip().splitlines()
    return {"status": status, "exit_code": code, "said": last[-1] if last else "", **found(result)}


def found(result: dict[str, Any] | None) -> Record:
    """What a result says: its claim of the whole run, the changes and their fate, the patch."""
    if result is None:
        return {"claim": None, "changes": [], "patch": "", "advice": []}
    patch = result.get("patch") or {}
    return {
        "claim": claim_of(result),
        "changes": patch.get("changes", []),
        "patch": patch.get("diff", ""),
        "advice": [{**each, "file": _named(each.get("file"))} for each in result.get("advice", [])],
    }


def claim_of(result: dict[str, Any]) -> dict[str, Any]:
    """The headline where there is one, else the ratio to the target; a run that keeps nothing claims 1."""
    speedup = result.get("speedup") or {}
    verified = bool(speedup.get("end_to_end_verified"))
    headline, ratio = speedup.get("headline"), speedup.get("time_to_target")
    if headline:
        figure = {name: headline.get(name) for name in ("kind", "value", "low", "high", "n")}
        return {**figure, "verified": verified}
    if ratio:
        return {"kind": "time_to_target", "value": ratio["value"], "verified": verified}
    kept = (result.get("best") or {}).get("plan", {}).get("changes")
    return {"kind": "none", "value": None if kept else 1.0, "verified": verified}


def by_train_doctor(work: Work) -> Record:
    """``train-doctor fix -- python SCRIPT WORDS``, its quick start; what it has proven is a patch file."""
    command = [str(installed("train-doctor") / "train-doctor"), "fix", "--no-card", "--", *work.command]
    code, stopped, output = work.run(command, {})
    patches = sorted((work.tree / work.case.below / ".train-doctor").rglob("*.patch"))
    said = "\n".join(line for line in output.splitlines() if not line.startswith("  ["))[-1500:]
    if patches:
        return {"status": "result", "said": said, "patch": patches[-1].read_text(encoding="utf-8")}
    status = "stopped" if stopped else "failed" if code else "nothing"
    return {"status": "cannot" if "before its first measured step" in said else status, "said": said}


def by_fournex(work: Work) -> Record:
    """``frx tune --safe -- python SCRIPT WORDS``; what it recommends are variables of the environment."""
    command = [str(installed("fournex") / "frx"), "tune", "--safe", "--out", str(work.folder / "runs"), "--"]
    _, stopped, output = work.run([*command, *work.command], {})
    reports = sorted((work.folder / "runs").rglob("autopilot_report.json"))
    if not reports:
        return {"status": "stopped" if stopped else "failed", "said": output[-1500:]}
    report = json.loads(reports[-1].read_text(encoding="utf-8"))
    if not report["improved"] or not report["winner"]:
        return {"status": "nothing", "said": output[-1500:]}
    return {"status": "result", "said": output[-1500:], "variables": report["winner"]["env_vars"]}


def by_loadtune(work: Work, known: Path) -> Record:
    """``loadtune tune FILE`` on a ``get_workload()``, which its documentation asks for."""
    if work.case.loadtune is None:
        return {"status": "cannot", "said": "it takes no script but a get_workload(); none was written for this one"}
    shutil.copy(work.case.loadtune, work.tree / work.case.below / "loadtune_workload.py")
    raw = work.folder / "raw.json"
    command = [sys.executable, "-m", "loadtune.cli", "tune", "loadtune_workload.py", "--save-raw", str(raw)]
    paths = [str(installed("loadtune")), work.case.environment(work.tree).get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CASE_DATA": str(work.data)}
    _, stopped, output = work.run(command, variables)
    if not raw.exists():
        return {"status": "stopped" if stopped else "cannot", "said": output[-1500:]}
    document = json.loads(raw.read_text(encoding="utf-8"))
    tried = [one for one in document["trials"] if one["result"] and not one["result"].get("error")]
    best = max(tried, key=lambda one: float(one["result"]["throughput"]), default=None)
    if best is None or best["result"]["throughput"] <= document["baseline"]["throughput"]:
        return {"status": "nothing", "said": output[-500:]}
    return with_plan(known, loadtunes_plan(best["knobs"])) | {"said": str(best["knobs"])}


def loadtunes_plan(knobs: Mapping[str, Any]) -> Changes:
    """The settings that loadtune tells a user to put in, as changes."""
    loader = {"num_workers": knobs["num_workers"], "persistent_workers": bool(knobs["persistent_workers"])}
    if knobs["prefetch_factor"]:
        loader["prefetch_factor"] = knobs["prefetch_factor"]
    every = (
        (knobs["num_workers"], "workers", loader),
        (knobs["num_threads"], "threads", {"threads": knobs["num_threads"]}),
        (knobs["amp"], "amp", {"dtype": "bfloat16"}),
        (knobs["compile"], "compile", {"mode": "default"}),
    )
    return [{"strategy": name, "setting": setting} for on, name, setting in every if on]


TIPS: Changes = [
    {"strategy": "workers", "setting": {"num_workers": 2, "persistent_workers": True}},
    {"strategy": "amp", "setting": {"dtype": "bfloat16"}},
    {"strategy": "channels_last", "setting": {}},
    {"strategy": "fused_optimizer", "setting": {"implementation": "fused"}},
    {"strategy": "compile", "setting": {"mode": "default"}},
]
"""The switches of a page of tips: workers, mixed precision, channels-last, a fused optimizer, compile."""


def by_tips(work: Work, known: Path) -> Record:
    """Everything that a page of tips names and that can be put into this script, unmeasured."""
    return with_plan(known, TIPS)


def by_optuna(work: Work, known: Path) -> Record:
    """Optuna's TPE over the settings that autoopt's search lists for this script; its objective is whole runs."""
    import optuna

    from autoopt.options import DEFAULT_RISKS
    from autoopt.records.reading import read_result
    from autoopt.registry import load_strategies

    registry = load_strategies()
    knobs: dict[str, list[Changes]] = {}
    for trial in read_result(known).trials:
        if trial.verdict == "not_applicable" or registry[trial.strategy].risk not in DEFAULT_RISKS:
            continue
        change = {"strategy": trial.strategy, "setting": dict(trial.setting)}
        changes = [*({"strategy": c.strategy, "setting": dict(c.setting)} for c in trial.companions), change]
        values = knobs.setdefault(trial.strategy, [[]])
        if changes not in values and with_plan(known, changes)["patch"].strip():
            values.append(changes)
    knobs = {name: values for name, values in knobs.items() if len(values) > 1}
    if not knobs:
        return {"status": "nothing", "said": "no setting can be put into this script"}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=work.seed % 2**31))
    deadline = time.monotonic() + work.budget

    def objective(trial: Any) -> float:
        picked = [values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in knobs.items()]
        made = with_plan(known, once(change for changes in picked for change in changes))
        trial.set_user_attr("found", made)
        tree = work.folder / "trial"
        shutil.rmtree(tree, ignore_errors=True)
        work.copy(tree)
        if made["patch"].strip() and put_on(made["patch"], tree / work.case.below):
            raise optuna.TrialPruned
        variables, left = work.case.environment(tree), deadline - time.monotonic()
        command = Command(work.command, folder=tree / work.case.below, variables=variables)
        (run,) = whole_runs(work.case, [command], left)
        target = work.case.target
        if run["error"] is not None or (target is not None and work.case.worse(target, run["metric"]) > 0):
            raise optuna.TrialPruned
        return float(run["seconds"])

    study.enqueue_trial(dict.fromkeys(knobs, 0))
    while time.monotonic() < deadline:
        study.optimize(objective, n_trials=1)
    ended = [one for one in study.trials if one.value is not None]
    said = f"{len(ended)} of {len(study.trials)} trials ended, over {', '.join(knobs)}"
    if not ended:
        return {"status": "stopped", "said": said}
    best: Record = study.best_trial.user_attrs["found"]
    return best | {"said": f"{said}; the best takes {study.best_value:.1f} s"}


def once(changes: Iterable[dict[str, Any]]) -> Changes:
    """The changes, the last one of each strategy."""
    return list({change["strategy"]: change for change in changes}.values())


def with_plan(known: Path, changes: Changes) -> Record:
    """The patch of those changes that can be put into the script, at the sites of autoopt's search."""
    from autoopt.export.script_patch import placed
    from autoopt.records import Plan
    from autoopt.records.reading import read_result
    from autoopt.registry import load_strategies
    from autoopt.script.applicable import inapplicable

    sites, registry = read_result(known).sites, load_strategies()
    assert sites is not None, "it is a script"
    possible = [
        one for one in changes if inapplicable(registry.fold(Plan.model_validate({"changes": [one]})), sites) is None
    ]
    made = placed(sites, Plan.model_validate({"changes": possible}), registry, "cpu").patch
    return {
        "status": "result",
        "patch": made.diff,
        "changes": [change.model_dump() for change in made.changes],
    }


TOOLS: dict[str, Callable[[Work], Record]] = {
    "autoopt": by_autoopt,
    "train-doctor": by_train_doctor,
    "fournex": by_fournex,
}
PUT_ON: dict[str, Callable[[Work, Path], Record]] = {"loadtune": by_loadtune, "optuna": by_optuna, "tips": by_tips}
"""Tools that have settings and no patch: a patch is made at the sites that autoopt's search of the script found."""
RIVALS = ("optuna", "tips", "train-doctor", "fournex", "loadtune")


def installed(tool: str) -> Path:
    """The folder of a tool's command, in an environment of its own; of loadtune, which imports torch, its package.

    Raises:
        CaseError: the registry does not have it.
    """
    place = cache() / "tools" / INSTALLED[tool]
    own = place if tool == "loadtune" else place / "bin"
    if not own.exists():
        made = [sys.executable, "-m", "venv", str(place)]
        words = ["install", "--quiet", INSTALLED[tool]]
        commands = [made, [str(place / "bin" / "python"), "-m", "pip", *words]]
        if tool == "loadtune":  # beside the torch that is there
            commands = [[sys.executable, "-m", "pip", *words, "--no-deps", "--target", str(place)]]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                shutil.rmtree(place, ignore_errors=True)
                raise CaseError(f"{tool} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return own


def put_on(patch: str, folder: Path) -> str | None:
    """Puts a diff on a copy of the script; why not, where git refuses it."""
    done = subprocess.run(
        ["git", "apply", "--verbose", "-"],
        cwd=folder,
        input=patch if patch.endswith("\n") else patch + "\n",
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)},  # the copy lies in no repository
        capture_output=True,
        text=True,
    )
    return None if done.returncode == 0 else done.stderr.strip()


def side_of(case: Case, record: Mapping[str, Any]) -> Side:
    """The tree to judge of a tool's work.

    Raises:
        CaseError: the tree is gone from the cache.
    """
    tree = cache() / record["folder"] / "patched"
    if not tree.exists():
        raise CaseError(f"{tree} is gone; the patch is in the results document, and `search --again` makes the tree")
    return Side(tree, case.script if case.below else "train.py", variables=record.get("variables") or {})
