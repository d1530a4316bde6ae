"""The winner in a folder of its own: the model, its requests, and the acceptance test, which needs no autoopt."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.trial_context import TrialContext
from autoopt.latency import serving
from autoopt.latency.measuring import Servers
from autoopt.latency.serving.requests import asker, tensors_of
from autoopt.latency.serving.variants import Variant, load
from autoopt.latency.tasks import requests_of, users_model, validation_batches
from autoopt.records import JsonDict, Plan
from autoopt.records.latency import Acceptance, Judged, Latency

SECONDS = 300.0
"""To write weights and requests, and for the acceptance test."""
SCRIPT = '''"""Fails (exit code 1) when the P95 or the metric of the model in this folder does. Needs no autoopt.

Limits stand in acceptance.json, how the model is served in serving/variants.py.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from serving.acceptance import main

if __name__ == "__main__":
    sys.exit(main(HERE))
'''
_WITHOUT = (
    "import runpy, sys; "
    "sys.modules.update(dict.fromkeys(('autoopt', 'autoopt_strategies', 'autoopt_model', 'autoopt_reports'))); "
    "sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def export(servers: Servers, variant: Variant, found: Latency, baseline: Judged, folder: Path) -> None:
    """Writes the folder.

    Args:
        baseline: the metric of the model as it is.

    Raises:
        TrialFailed: the model cannot be built for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    artefact = servers.artefact(variant)
    if artefact is not None:
        shutil.copytree(artefact, folder / "model", dirs_exist_ok=True)
    with servers.runner.trial(Plan(), "export") as process:
        kept = process.call(
            f"{__name__}:keep", timeout=SECONDS, variant=variant.document(), weights=servers.weights_of(variant),
            artefact=str(artefact) if artefact else "", folder=str(folder), **servers.shape,
        )  # fmt: skip
    sign = 1 if found.mode == "max" else -1
    settings = {
        "variant": variant.document(),
        "workload": found.workload,
        "search_path": [servers.runner.base.directory],
        "device": kept["device"],
        "limit_seconds": found.limit_seconds,
        "clients": found.clients,
        "metric": found.metric,
        "mode": found.mode,
        "baseline": baseline.metric,
        "least": baseline.metric - sign * found.max_drop * abs(baseline.metric),
    }
    (folder / "acceptance.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "accept.py").write_text(SCRIPT, encoding="utf-8")
    target = folder / "serving"
    target.mkdir(exist_ok=True)
    for source in sorted(Path(serving.__path__[0]).glob("*.py")):
        shutil.copyfile(source, target / source.name)


def keep(
    live: TrialContext,
    variant: JsonDict,
    weights: str,
    artefact: str,
    folder: str,
    sizes: list[int],
    lengths: list[int | None],
) -> JsonDict:
    """A task: writes weights, requests, and the validation data or the answers that were judged."""
    wanted, there = Variant(**variant), Path(folder)
    model = users_model(live, wanted.model, weights)
    requests = requests_of(live, model, sizes, lengths)
    torch.save(_plain(requests), there / "requests.pt")
    if not wanted.artefact:
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, there / "weights.pt")
    if live.workload.adapter is None:
        torch.save(_plain(validation_batches(live)), there / "validation.pt")
    else:
        ask = asker(load(model, wanted, Path(artefact) if artefact else None).eval(), str(live.device))
        torch.save(
            [[tensor.clone() for tensor in tensors_of(ask(request))] for request in requests], there / "answers.pt"
        )
    return {"device": str(live.device)}


def _plain(tree: Any) -> Any:
    """Containers of libraries as plain ones: what is read back executes nothing."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_plain, tree))
    return list(map(_plain, tree)) if isinstance(tree, list) else tree


def accept(folder: Path) -> Acceptance:
    """Runs the acceptance test in a process in which autoopt cannot be imported."""
    command = [sys.executable, "-c", _WITHOUT, str(folder / "accept.py")]
    shown = f"python {folder / 'accept.py'}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return Acceptance(command=shown, exit_code=None, output=f"it takes more than {SECONDS:.0f} s")
    return Acceptance(command=shown, exit_code=done.returncode, output=(done.stdout or done.stderr[-2000:]).strip())
