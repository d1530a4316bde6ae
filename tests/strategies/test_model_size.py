"""``model_size``: which parameters of a user's build are sizes, what is tried of them, and what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.export.script import script
from autoopt.loading import importing, validation
from autoopt.records import Change, JsonDict, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt_model.model_size import ModelSize
from autoopt_model.sizes import integer_defaults
from tests.strategies.stand_ins import promised

REGISTRY = load_strategies()
STRATEGY = ModelSize()
WORKLOADS = Path(__file__).parents[1] / "workloads" / "sized.py"
HALF = {"build": f"{WORKLOADS}:build", "arguments": {"width": 16}}


def inspected(attribute: str = "build", plan: Plan | None = None) -> JsonDict:
    spec = TrialSpec(workload=f"{WORKLOADS}:{attribute}", device="cpu", plan=plan or Plan())
    live = TrialContext(spec, REGISTRY)
    try:
        return STRATEGY.inspect(live)
    finally:
        live.close()


def training(setting: JsonDict | None = None, attribute: str = "build") -> Training:
    seed_everything(0)
    workload = validation.build(importing.load(f"{WORKLOADS}:{attribute}"))
    setup = Setup() if setting is None else STRATEGY.apply(workload.setup, setting)
    return Training(workload, setup, device="cpu", seed=0)


def parameters(run: Training) -> int:
    return sum(p.numel() for p in run.model.parameters())


def test_sizes_are_those_that_leave_inputs_and_answers_as_they_are() -> None:
    found = inspected()
    names = [size["name"] for size in found["sizes"]]
    assert names == ["width", "depth"], "what saves most floating-point work goes first"
    width, depth = found["sizes"]
    assert {share: value for share, (value, _, _) in width["values"].items()} == {"0.5": 16, "0.25": 8, "0.75": 24}
    assert {share: value for share, (value, _, _) in depth["values"].items()} == {"0.5": 1}
    assert width["values"]["0.5"][1] < found["parameters"]
    assert 0.2 < width["values"]["0.5"][2] < 0.35, "products are a quarter, scores of attention a half"
    assert depth["values"]["0.5"][2] == pytest.approx(0.5, abs=0.02)
    refused = found["refused"]
    assert "as many parameters" in refused["heads"]
    assert "as many parameters" in refused["samples"]
    assert "the embedding embedding would not have a row" in refused["tokens=12"]
    assert "answers with" in refused["classes=1"]


def test_values_that_the_build_refuses_are_left_out_with_its_words() -> None:
    found = inspected("build", None)
    assert found["sizes"]
    told = inspected("fixed")["reason"]
    assert "width=16: it cannot be built: ValueError: no such width: 16" in told
    heads = integer_defaults(importing.load(f"{WORKLOADS}:build"))
    assert heads == {"width": 32, "depth": 2, "heads": 4, "tokens": 24, "classes": 2, "samples": 1024}


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("without_sizes", "no whole-number parameter with a default"),
        ("of_samples", "samples: the model has as many parameters with less of it"),
        ("own_optimizer", "the optimizer takes parameters of the model that build() made"),
        ("ready", "a workload, not a function"),
    ],
)
def test_a_build_without_sizes_says_why(attribute: str, told: str) -> None:
    found = inspected(attribute)
    answer = STRATEGY.applies(sample_case("cpu", inspected={"model_size": found}))
    assert not answer
    assert told in answer.reason


def test_trainers_objects_and_scripts_are_not_inspected() -> None:
    live: Any = SimpleNamespace(spec=SimpleNamespace(workload="x:y"), workload=SimpleNamespace(adapter="lightning"))
    assert "bound to the model" in STRATEGY.inspect(live)["reason"]
    live.spec.script = object()
    assert "no build()" in STRATEGY.inspect(live)["reason"]


def walked(sizes: list[JsonDict], verdicts: list[str], plan: Plan | None = None) -> list[dict[str, int]]:
    """Arguments that are asked for, in their order, where the trials end so."""
    case = sample_case("cpu", inspected={"model_size": {"build": "m:build", "sizes": sizes, "parameters": 1000}})
    talk = STRATEGY.settings(replace(case, plan=plan or Plan()))
    found: list[dict[str, int]] = []
    try:
        setting = next(talk)
        while True:
            found.append(setting["arguments"])
            verdict = verdicts[len(found) - 1] if len(found) <= len(verdicts) else "no_gain"
            setting = talk.send(SimpleNamespace(verdict=verdict))
    except StopIteration:
        return found


WIDTH = {"name": "width", "whole": 32, "values": {"0.5": [16, 500, 0.3], "0.25": [8, 200, 0.1], "0.75": [24, 700, 0.6]}}
DEPTH = {"name": "depth", "whole": 2, "values": {"0.5": [1, 600, 0.5]}}


def test_smaller_while_it_is_kept_and_larger_where_the_target_is_missed() -> None:
    assert walked([WIDTH, DEPTH], ["kept", "kept"]) == [{"width": 16}, {"width": 8}, {"width": 8, "depth": 1}]
    assert walked([WIDTH, DEPTH], ["kept", "quality_lost"])[2] == {"width": 16, "depth": 1}
    assert walked([WIDTH], ["quality_lost"]) == [{"width": 16}, {"width": 24}]
    assert walked([WIDTH, DEPTH], ["no_gain"]) == [{"width": 16}, {"depth": 1}]
    values = {share: value for share, value in WIDTH["values"].items() if share != "0.5"}  # type: ignore[attr-defined]
    assert walked([{**WIDTH, "values": values}], []) == [{"width": 24}]


def test_a_later_round_goes_on_from_what_was_kept() -> None:
    kept = Plan(changes=(Change(strategy="model_size", setting=HALF),))
    assert walked([WIDTH, DEPTH], [], kept) == [{"width": 8}, {"width": 16, "depth": 1}]


def test_the_prediction_is_the_work_that_is_left_at_the_very_best() -> None:
    case = sample_case("cpu", inspected={"model_size": {"build": "m:build", "sizes": [WIDTH, DEPTH]}})
    half = promised(STRATEGY, case, {"build": "m:build", "arguments": {"width": 16}})
    both = promised(STRATEGY, case, {"build": "m:build", "arguments": {"width": 16, "depth": 1}})
    assert 1.0 < half.value < both.value
    assert STRATEGY.predict(case, {"build": "m:build", "arguments": {"width": 5}}) is None


def test_the_smaller_model_is_trained_and_stands_before_other_changes_of_it() -> None:
    whole, half = training(), training(HALF)
    assert parameters(half) == inspected()["sizes"][0]["values"]["0.5"][1]
    assert parameters(half) < parameters(whole)
    before = {name: p.detach().clone() for name, p in half.model.named_parameters()}
    for _ in range(3):
        half.step(half.next())
    assert all(not torch.equal(p, before[name]) for name, p in half.model.named_parameters())
    setup = STRATEGY.apply(Setup().with_model(str), HALF)
    assert [type(change).__name__ for change in setup.model] == ["Sized", "type"]
    whole.close()
    half.close()


def test_the_exported_script_builds_with_the_argument_and_trains_alike(tmp_path: Path) -> None:
    run = training(HALF)
    facts = workload_facts(run, HALF["build"])
    plan = Plan(changes=(Change(strategy="model_size", setting=HALF),))
    made = script(HALF["build"], plan, REGISTRY, facts=facts)
    assert "Not in this script" not in made
    assert 'Sized(build=build, arguments={"width": 16})' in made
    assert "import autoopt" not in made
    assert "class UserBuild" not in made
    other = script("elsewhere:build", plan, REGISTRY, facts=facts)
    assert "which this script does not have" in other.replace("\n# ", " ")
    run.close()
