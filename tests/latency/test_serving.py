"""Served models answer as the model does, with weights as they are found in the wild."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.errors import DocumentError, UsageError
from autoopt.latency.export import accept, export
from autoopt.latency.measuring import Servers
from autoopt.latency.options import Serve
from autoopt.latency.serving.variants import Variant, load, prepare
from autoopt.latency.tasks import load_weights
from autoopt.options import Options
from autoopt.records.latency import Latency
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.command import Build
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from modules import autoopt

WORKLOAD = Path(__file__).with_name("serve_workload.py")


class Named(nn.Module):
    """Called with a keyword, answers with names: as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.embedding(ids)
        if mask is not None:
            hidden = hidden * mask[..., None]
        return {"logits": self.head(hidden.mean(1)), "hidden": hidden}


def call(samples: int, length: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(samples)
    return (torch.randint(50, (samples, length), generator=generator),), {"mask": torch.ones(samples, length)}


def slow(variant: Variant, close: float, *packages: str) -> Any:
    return pytest.param(
        variant, close, packages, id=variant.name, marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
    )


@pytest.mark.parametrize(
    ("variant", "close", "packages"),
    [
        pytest.param(Variant(precision="bfloat16"), 0.05, (), id="bfloat16"),
        *(slow(Variant(engine="onnxruntime", precision=each, threads=1), 0.05, "onnxruntime", "onnxscript")
          for each in ("as_is", "int8_dynamic", "int8_static")),
        slow(Variant(engine="aotinductor"), 1e-4),
        slow(Variant(precision="int8_weight_only"), 0.05, "torchao"),
    ],
)  # fmt: skip
def test_requests_of_other_sizes_and_lengths_are_answered_alike(
    variant: Variant, close: float, packages: tuple[str, ...], tmp_path: Path
) -> None:
    for name in packages:
        pytest.importorskip(name)
    torch.manual_seed(0)
    model = Named().eval()
    prepare(model, variant, [call(2, 5), call(3, 7)], [call(32, 5), call(64, 9)], tmp_path)
    served = load(model if not variant.artefact else None, variant, tmp_path)
    torch.manual_seed(0)
    plain = Named().eval()
    for request in (call(1, 4), call(5, 9)):
        wanted, found = plain(*request[0], **request[1]), served(*request[0], **request[1])
        assert found["logits"].dtype == torch.float32
        assert torch.allclose(found["logits"], wanted["logits"], atol=close)


@pytest.fixture
def servers(tmp_path: Path, launcher: Launcher) -> Servers:
    options = Options(device="cpu")
    registry = registry_of(options)
    spec = baseline_spec(Build(f"{WORKLOAD}:build"), options, registry)
    runner = TrialRunner(launcher, spec, registry, tmp_path / "logs")
    return Servers(runner, Serve(), tmp_path / "artefacts", time.time)


def document(**changed: Any) -> Latency:
    return Latency(
        autoopt_version="0", created="", seconds=1.0, budget_seconds=1.0, workload=f"{WORKLOAD}:build",
        weights="", seed=0, max_drop=0.01, clients=1, requests=256, metric="accuracy", mode="max",
        validation_samples=600, **changed,
    )  # fmt: skip


@pytest.mark.slow
def test_what_is_exported_is_accepted_without_autoopt_and_refused_beyond_its_limits(
    servers: Servers, tmp_path: Path
) -> None:
    variant = Variant(precision="bfloat16", threads=1)
    arm = servers.start(variant, 120.0)
    try:
        arm.ready()
        startup = arm.warm_up(60.0)
        block = arm.block(0.1, 16, 0.05)
    finally:
        arm.close()
    judged = servers.judged[arm.plan.key]
    assert judged.samples == len(judged.each) == 600
    assert startup.fixed_seconds > 0
    assert startup.warmup_steps == 10
    assert block.samples == len(block.step_seconds) >= 16
    assert set(arm.blocks) == {1, 4}
    folder = tmp_path / "serving"
    export(servers, variant, document(limit_seconds=30.0), judged, folder)
    tested = accept(folder)
    assert tested.exit_code == 0, tested.output
    assert "accuracy: 0.9" in tested.output
    kept = json.loads((folder / "acceptance.json").read_text())
    for change in ({"limit_seconds": 1e-9}, {"least": 1.1}):
        (folder / "acceptance.json").write_text(json.dumps({**kept, **change}))
        tested = accept(folder)
        assert tested.exit_code == 1, tested.output
        assert "FAILS" in tested.output
        assert "NOT accepted" in tested.output


@pytest.mark.slow
def test_the_whole_command_and_its_acceptance_test(tmp_path: Path) -> None:
    """A limit that any machine holds, where it is quiet enough for three sets of processes in the time."""
    words = ("--p95", "2s", "--max-drop", "3%", "--budget", "120s", "--out", "run", "--json")
    done = autoopt("latency", f"{WORKLOAD}:build", *words, cwd=tmp_path, codes=(0, 5))
    found = Latency.model_validate_json(done.stdout)
    assert found == Latency.model_validate_json((tmp_path / "run" / "latency.json").read_text())
    assert found.holds == ("yes" if done.returncode == 0 else "undecided")
    assert found.variants[0].name == "as it is"
    assert found.variants[0].loads
    assert all(variant.reason for variant in found.variants if variant.status not in ("measured", "screened"))
    assert "<h1>" in (tmp_path / "run" / "latency.html").read_text()
    if found.holds == "yes":
        best = found.variant(found.chosen or "")
        assert best.p95.n >= 3
        assert found.acceptance.exit_code == 0, found.acceptance.output
    else:
        assert any("fresh processes, 3 are needed" in variant.reason for variant in found.variants)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "words", "told"),
    [
        ("no_validation", ("--p95", "80ms"), ["has no valid_data"]),
        ("build", ("--student", f"{WORKLOAD}:bild"), ["has no 'bild'", "did you mean 'build'"]),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_measured(
    build: str, words: tuple[str, ...], told: list[str], tmp_path: Path
) -> None:
    done = autoopt("latency", f"{WORKLOAD}:{build}", *words, cwd=tmp_path, codes=(3,))
    assert all(text in done.stderr for text in told)


def test_the_files_that_are_copied_import_nothing_of_autoopt() -> None:
    found = importlib.util.find_spec("autoopt.latency.serving")
    for path in Path(found.submodule_search_locations[0]).glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert not [line for line in lines if "autoopt" in line], path


# Weights of checkpoints as they are found in the wild.


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "form",
    [
        lambda state: state,
        lambda state: {"training": {"model": state, "steps": 3}, "workload": "m:b"},
        lambda state: {"model_state_dict": state, "epoch": 3},
        lambda state: {"state_dict": {f"net.{name}": value for name, value in state.items()}, "epoch": 3},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
        lambda state: {f"module.{name}": value for name, value in state.items()},
    ],
)
def test_forms_of_checkpoints(tmp_path: Path, form: Any) -> None:
    source, target = model(1), model(2)
    torch.save(form(source.state_dict()), tmp_path / "w.pt")
    load_weights(target, tmp_path / "w.pt")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_what_is_no_checkpoint_of_this_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no checkpoint"):
        load_weights(model(1), tmp_path / "nowhere.pt")
    path = tmp_path / "weights.pt"
    for held, said in (
        (None, "cannot read the checkpoint .*: it is not a whole file of torch.save"),
        ({"epoch": 3}, "holds no weights"),
        (nn.Linear(9, 9).state_dict(), "weights of another model"),
        (model(1), "cannot read the checkpoint .*: it holds more than tensors"),  # code, which is not executed
    ):
        torch.save(held, path)
        if held is None:
            path.write_text("no")
        with pytest.raises(DocumentError, match=said):
            load_weights(model(1), path)
