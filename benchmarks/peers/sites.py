"""Sites that autoopt finds in a script, and the fate of each known change as a patch. No timing.

``python -m benchmarks.peers.sites NAME``, in a process of its own, for it goes to the script's folder.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError
from autoopt.export.script_patch import patch_of
from autoopt.options import Options
from autoopt.records import Plan, Sites
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.command import read
from autoopt.script.sayable import unsayable
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from benchmarks.peers import judge, rivals
from benchmarks.peers.fetching import SCRATCH, fetch
from benchmarks.peers.processes import environment
from benchmarks.peers.workloads import WORKLOADS, Workload

STEPS = 6
"""Steps that the patched script must come to."""
LIMIT = 60.0


def watched(workload: Workload, registry: Registry) -> Sites:
    """The sites of a script, in a first run of it that changes nothing."""
    base = baseline_spec(read(workload.script, workload.words), Options(), registry)
    with tempfile.TemporaryDirectory(prefix="autoopt-") as folder, Launcher() as launcher:
        sites = TrialRunner(launcher, base, registry, Path(folder)).watched()
    assert sites is not None, "it is a script"
    return sites


def met(workload: Workload) -> dict[str, Any]:
    """Sites, what is not found, each change's fate, and whether the patch of all of them applies and trains."""
    registry = registry_of(Options())
    began = time.monotonic()
    try:
        sites = watched(workload, registry)
    except AutooptError as error:
        return {"error": " ".join(str(error).split())[-600:], "seconds": time.monotonic() - began}
    found: dict[str, Any] = {
        "seconds": time.monotonic() - began,
        "sites": [[site.kind, site.file, site.line, site.direct] for site in sites.sites],
        "not_found": [one.model_dump() for one in sites.not_found],
        "changes": {},
    }
    plan = []
    for change in (change for values in rivals.KNOBS.values() for change in values[-1]):
        reason = unsayable(registry.fold(Plan.model_validate({"changes": [change]})), sites)
        if reason is None:
            (fate,) = patch_of(sites, Plan.model_validate({"changes": [change]}), registry, "cpu").changes
            found["changes"][change["strategy"]] = {"how": fate.how, "reason": fate.reason}
        else:
            found["changes"][change["strategy"]] = {"how": "not from outside", "reason": reason}
        if reason is None and fate.how == "patched" and change["strategy"] not in ("compile", "threads"):
            plan.append(change)  # compiling takes its minute, and a thread less is no tip
    patch = patch_of(sites, Plan.model_validate({"changes": plan}), registry, "cpu")
    return found | {"patch": patch.diff, "patch_of": [change["strategy"] for change in plan]}


def main(name: str) -> None:
    """Watches one script, and runs its patched copy for a few steps."""
    workload = WORKLOADS[name]
    folder = fetch(workload)
    os.environ.update(environment(workload, folder))
    os.chdir(folder)
    found = met(workload)
    out = SCRATCH / "sites" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found | {"refused": None, "patched_run": None}, indent=1), encoding="utf-8")
    if found.get("patch"):
        copy = rivals.copy_of(workload, "sites", "patched")
        file = rivals.place(workload, "sites") / "result.diff"
        file.write_text(found["patch"], encoding="utf-8")
        found["refused"] = rivals.put_on(file, copy)
        if found["refused"] is None:
            ran = judge.one_run(workload, judge.Side("sites", copy), LIMIT, warm_up=1, steps=STEPS)
            error = ran.get("error", "trains")
            found["patched_run"] = None if error.startswith("not done") else error  # too slow to tell
        out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(name, json.dumps({k: v for k, v in found.items() if k != "patch"})[:1500])


if __name__ == "__main__":
    main(sys.argv[1])
