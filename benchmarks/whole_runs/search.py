"""One search of autoopt's on a copy of a case's script, and the tree that its patch makes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.whole_runs.cases import HERE, Case, CaseError
from benchmarks.whole_runs.data import cache

ROOT = HERE.parents[1]


def revision() -> str:
    """The revision of this tree; what is not committed is marked, as no one else can have it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", "autoopt", "strategies") else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def searched(case: Case, data: Path, budget: str, seed: int, number: int) -> dict[str, Any]:
    """Runs ``autoopt optimize train.py`` once and puts its patch on a copy of the script.

    Returns:
        The record of the search. ``folder`` holds ``run`` (the run directory) and ``patched`` (the tree to judge).
    """
    folder = cache() / "searches" / f"{case.name}-{revision()}-{number}"
    if folder.exists():
        shutil.rmtree(folder)
    tree, patched = folder / "tree", folder / "patched"
    for place in (tree, patched):
        place.mkdir(parents=True)
        shutil.copy(case.folder / "train.py", place)
    command = ["optimize", "train.py", "--budget", budget, "--out", str(folder / "run"), "--metric", case.watched]
    script = ["--data", str(data), "--seed", str(seed)]
    began = time.monotonic()
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        code = subprocess.run(
            [sys.executable, "-m", "autoopt", *command, "--", *script],
            cwd=tree,
            env=_variables(),
            stdout=log,
            stderr=log,
        ).returncode
    record = {"exit_code": code, "seconds": time.monotonic() - began, "folder": str(folder), "budget": budget}
    said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    file = folder / "run" / "result.json"
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return {
        **record,
        "last_line": said[-1] if said else "",
        **found(result),
        "refused": put_on(folder / "run", patched),
    }


def _variables() -> dict[str, str]:
    """The tree that this module lies in is what searches, installed or not."""
    paths = [str(ROOT), str(ROOT / "strategies"), str(ROOT / "reports"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def found(result: dict[str, Any] | None) -> dict[str, Any]:
    """What a result says: its claim of the whole run, the changes and their fate, the patch."""
    if result is None:
        return {"claim": None, "changes": [], "patch": "", "advice": []}
    patch = result.get("patch") or {}
    return {
        "claim": claim_of(result),
        "changes": patch.get("changes", []),
        "patch": patch.get("diff", ""),
        "advice": result.get("advice", []),
    }


def claim_of(result: dict[str, Any]) -> dict[str, Any]:
    """The headline where there is one, else the ratio to the target; a run that keeps nothing claims 1."""
    speedup = result.get("speedup") or {}
    verified = bool(speedup.get("end_to_end_verified"))
    headline, ratio = speedup.get("headline"), speedup.get("time_to_target")
    if headline:
        return {"kind": headline["kind"], "value": headline["value"], "verified": verified}
    if ratio:
        return {"kind": "time_to_target", "value": ratio["value"], "verified": verified}
    kept = (result.get("best") or {}).get("plan", {}).get("changes")
    return {"kind": "none", "value": None if kept else 1.0, "verified": verified}


def put_on(run: Path, folder: Path) -> str | None:
    """Puts the run's patch on the copy of the script; why not, where git refuses it."""
    patch = run / "patch.diff"
    if not patch.exists() or not patch.read_text(encoding="utf-8").strip():
        return None
    done = subprocess.run(
        ["git", "apply", "--verbose", str(patch)],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(cache())},  # the copy lies in no repository
        capture_output=True,
        text=True,
    )
    return None if done.returncode == 0 else done.stderr.strip()


def patched_folder(record: dict[str, Any]) -> Path:
    """The tree to judge of a search.

    Raises:
        CaseError: git refused the patch, or the tree is gone from the cache.
    """
    folder = Path(record["folder"]) / "patched"
    if record["refused"]:
        raise CaseError(f"the patch of {record['case']} does not apply: {record['refused']}")
    if not folder.exists():
        raise CaseError(f"{folder} is gone; the patch is in the results document, and `search --again` makes the tree")
    return folder
