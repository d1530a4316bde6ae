"""Frozen modules of a script: found by the lines that call them, and computed once for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autoopt.benchmark.kept_outputs import KeptOutputs, kept_outputs
from autoopt.export.script_patch import placed
from autoopt.records import Plan, Sites
from autoopt.registry import load_strategies
from autoopt.script.frozen import variants
from autoopt.strategy import Case
from autoopt.testing.strategies import sample_case
from modules import run_python
from tests.script.conftest import StartScript, block_of, plan_of

REGISTRY = load_strategies([])
STRATEGY = REGISTRY["cached_features"]


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(3, 2).requires_grad_(False), 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.rows += len(x)
        return scale * self.layer(x)


def test_a_sample_is_computed_once_in_whatever_batch_it_comes() -> None:
    module, x = Counted(), torch.randn(6, 3)
    first = kept_outputs(module, x)
    assert module.rows == 6
    assert torch.equal(kept_outputs(module, x[[4, 1]]), first[[4, 1]])
    assert module.rows == 6
    other = torch.cat([x[:1], torch.ones(1, 3)])
    torch.testing.assert_close(kept_outputs(module, other), module.layer(other))
    assert module.rows == 7, "the new one alone"


@pytest.mark.parametrize("how", ["argument", "mode", "weights", "dtype"])
def test_what_the_output_depends_on_is_part_of_what_is_kept(how: str) -> None:
    module, x = Counted(), torch.randn(4, 3)
    kept_outputs(module, x)
    if how == "argument":
        assert torch.equal(kept_outputs(module, x, scale=2.0), 2.0 * module.layer(x))
    elif how == "mode":
        module.eval()
    elif how == "weights":
        module.layer.weight.data.mul_(3.0)
        assert torch.equal(kept_outputs(module, x), module.layer(x))
    else:
        module.double()
        assert kept_outputs(module, x.double()).dtype == torch.float64
    kept_outputs(module, x if how != "dtype" else x.double())
    assert module.rows > 4


class Pair(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


@pytest.mark.parametrize("kind", [tuple, list, dict, Pair])
def test_several_tensors_are_kept_as_they_are_returned(kind: Any) -> None:
    class Several(Counted):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            one, two = super().forward(x, scale), x.sum(1)
            return {"one": one, "two": two} if kind is dict else Pair(one, two) if kind is Pair else kind((one, two))

    module, x = Several(), torch.randn(4, 3)
    first, again = kept_outputs(module, x), kept_outputs(module, x.flip(0))
    assert type(first) is type(again) is kind
    before, after = (each.values() if kind is dict else each for each in (first, again))
    assert all(torch.equal(one, other.flip(0)) for one, other in zip(before, after, strict=True))
    assert module.rows == 4


def test_what_has_a_gradient_is_computed() -> None:
    module, x = Counted(), torch.randn(4, 3, requires_grad=True)
    kept = KeptOutputs()
    for _ in range(2):
        assert kept(module, (x,), {}).requires_grad
    assert not kept.rows


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("plain", None),
        ("norm", "BatchNorm"),
        ("dropout", "random numbers"),
        ("noise", "your own lines"),
        ("average", "weights change"),
    ],
)
def test_a_teacher_is_found_where_its_answers_can_be_kept(
    start_script: StartScript, way: str, reason: str | None
) -> None:
    sites = start_script.watch("frozen.py", "100000", way)
    found = {site.call: site for site in sites.of("frozen")}
    assert set(found) == {"teacher", "trunk"}
    assert found["trunk"].options["path"] == "trunk"
    assert "reason" not in found["trunk"].options
    if reason is None:
        assert found["teacher"].options["row_bytes"] == 16
    else:
        assert reason in found["teacher"].options["reason"]


def test_a_trial_and_its_patch_train_as_the_script_does(start_script: StartScript, folder: Path) -> None:
    seen = start_script.watch("frozen.py", "100000")
    slow = [s.model_copy(update={"options": {**s.options, "seconds": 1.0, "kept_seconds": 0.1}}) for s in seen.sites]
    sites = seen.model_copy(update={"sites": tuple(slow)})  # so small calls may take as long as to look them up
    (setting,) = STRATEGY.settings(replace(sample_case(), sites=sites))
    plan = plan_of("cached_features", **setting)
    losses = [start_script.losses("frozen.py", "100000", steps=12, sites=sites, plan=each) for each in (Plan(), plan)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    with start_script("frozen.py", "100000", "counted", sites=sites, plan=plan) as process:
        block_of(process, 200)

    patch = placed(sites, plan, REGISTRY, "cpu")
    assert "kept_outputs(teacher, seen)" in patch.patch.diff
    assert "kept_outputs(self.trunk, x)" in patch.patch.diff
    before = _printed(folder)
    for name, text in patch.texts.items():
        (folder / name).write_text(text)
    assert _printed(folder) == pytest.approx(before, rel=1e-4)


def _printed(folder: Path) -> list[float]:
    return [float(line.split()[1]) for line in run_python("frozen.py", 3, cwd=folder).stdout.splitlines()]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reason": "it draws"}, "train.py:9 teacher: it draws"),
        ({"seconds": 1e-4, "kept_seconds": 1e-3, "row_bytes": 8}, "takes as long as making them"),
        ({"seconds": 0.5, "kept_seconds": 1e-3, "row_bytes": 2**40}, "the outputs would take"),
        ({"seconds": 1e-3, "kept_seconds": 0.0, "row_bytes": 8}, "too little of a step"),
        ({"seconds": 0.05, "kept_seconds": 1e-3, "row_bytes": 8}, ""),
    ],
)
def test_it_says_why_where_nothing_is_kept(options: dict[str, Any], reason: str) -> None:
    assert reason in STRATEGY.applies(case_of(options)).reason


@pytest.mark.parametrize(("variants", "epochs", "computed"), [(1, 4, 1.0), (2, 1, 1.0), (2, 2, 1.5), (2, 50, 2.0)])
def test_the_first_epochs_pay_for_what_augmentation_makes_new(variants: int, epochs: int, computed: float) -> None:
    case = case_of({"seconds": 0.05, "kept_seconds": 0.0, "row_bytes": 8}, variants)
    facts = case.workload
    steps = epochs * (facts.train_samples or 0) // (facts.batch_size or 1)
    found = STRATEGY.predict(replace(case, planned_steps=steps), {})
    assert case.pipeline is not None
    assert found is not None
    run = steps * case.pipeline.step_seconds
    saved = 0.05 * steps * (1 - computed / epochs)
    assert found.value == pytest.approx(run / (run - saved), rel=0.02)


class Flipped(Dataset[torch.Tensor]):
    def __init__(self, flips: bool) -> None:
        self.rows, self.flips = torch.arange(24.0).view(6, 4), flips

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index].flip(0) if self.flips and torch.rand(()) < 0.5 else self.rows[index]


@pytest.mark.parametrize("flips", [False, True])
def test_variants_of_a_sample_are_counted_without_a_trace(flips: bool) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert variants(DataLoader(Flipped(flips), batch_size=2)) == {"variants": 1 + flips}
    assert torch.equal(torch.get_rng_state(), state)


def test_samples_without_an_index_are_not_kept() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    assert "samples of Stream are not read by an index" in variants(DataLoader(Stream()))["reason"]


def case_of(options: dict[str, Any], variants: int = 1) -> Case:
    site = {"kind": "frozen", "call": "teacher", "file": "train.py", "line": 9, "end_line": 9}
    options = {"path": "", "variants": variants, **options}
    seen = {"command": ["train.py"], "cwd": "/", "sites": [{**site, "options": options}]}
    case = sample_case()
    dataset = case.workload.dataset.model_copy(update={"deterministic": variants == 1})
    facts = case.workload.model_copy(update={"dataset": dataset})
    return replace(case, workload=facts, sites=Sites.model_validate(seen))
