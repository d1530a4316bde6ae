"""Every built-in strategy appears in optimized_train.py, whose losses are those of the trial, number for number."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from autoopt.export.script import script
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.testing.method_cards import shipped
from autoopt.testing.strategies import example_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import attending_workload  # noqa: E402
from script_running import SEED, facts_of, loaded, script_losses, trial_losses  # noqa: E402

from workloads.attention import rewrite  # noqa: E402

REGISTRY = load_strategies()
SETTINGS = {strategy.name: example_of(strategy).setting for strategy in shipped()}
SETTINGS["chunked_loss"] = {"path": "head", "rows": 5, "multiple": 4}  # of this workload
SETTINGS["lora"] = {"rank": 2, "targets": ["blocks.0.out", "blocks.1.out"], "heads": ["head"]}
SETTINGS["fp8"] = {"layers": ["blocks.0.out"], "recipe": "tensorwise", "emulate": True}
SPEC = "attending_workload:build"
SETTINGS["model_size"] = {"arguments": {"inner": 8}, "build": SPEC}
NARROW = {"pruning", "distillation"}
"""They need a model that runs with fewer channels."""
WRITTEN = {
    "compile": "compile_in_place(model",
    "cuda_graphs": "recorded(self.train_step)",
    "affinity": "sched_setaffinity",
}
"""Lines in the script of a strategy that is not trained with here: it compiles for long, or needs CUDA."""


def plan_of(*names: str) -> Plan:
    return REGISTRY.order(Plan(changes=tuple(Change(strategy=name, setting=SETTINGS[name]) for name in names)))


def spec_of(plan: Plan) -> str:
    return "attending_workload:convolving" if NARROW & set(plan.names()) else SPEC


def losses_of(plan: Plan) -> list[float]:
    return trial_losses(spec_of(plan), plan, REGISTRY)[0]


def printed(plan: Plan) -> str:
    spec = spec_of(plan)
    return script(spec, plan, REGISTRY, facts=facts_of(spec))


def stands_alone(made: str) -> None:
    assert "Not in this script" not in made
    assert "import autoopt" not in made
    assert "from autoopt" not in made


def groups(count: int = 7) -> dict[str, list[str]]:
    """Plans that together hold every strategy that can be trained with here, each beside others that it stands with."""
    made: list[list[str]] = [[] for _ in range(count)]
    for number, name in enumerate(name for name in SETTINGS if name not in {*NARROW, *WRITTEN}):
        strategy = REGISTRY[name]
        distributed = ".distributed." in type(strategy).__module__ or plan_of(name).processes > 1
        if distributed or not example_of(strategy).trains:
            continue
        for turn in range(count):
            group = made[(number + turn) % count]
            if not any(name in REGISTRY[other].excludes or other in strategy.excludes for other in group):
                group.append(name)
                break
        else:
            made.append([name])
    return {"+".join(names): names for names in [*made, *([name] for name in sorted(NARROW))] if names}


@pytest.mark.parametrize("names", groups().values(), ids=groups())
def test_a_script_with_them_trains_as_the_trial_does(names: list[str], tmp_path: Path) -> None:
    made = printed(plan_of(*names))
    stands_alone(made)
    before = torch.get_float32_matmul_precision()
    losses, _ = script_losses(loaded(made, tmp_path), "--seed", str(SEED))
    torch.set_float32_matmul_precision(before)
    assert losses == losses_of(plan_of(*names))


@pytest.mark.parametrize("name", [name for name in SETTINGS if not any(name in group for group in groups().values())])
def test_what_cannot_be_trained_with_here_is_written_or_left_to_who_starts_processes(name: str) -> None:
    made = printed(plan_of(name))
    if plan_of(name).processes > 1:
        assert "autoopt train" in made, "the script trains in one process, and who starts several is named"
        return
    stands_alone(made)
    compile(made, "optimized_train.py", "exec")
    assert WRITTEN.get(name, "") in made
    assert name in WRITTEN or ".distributed." in type(REGISTRY[name]).__module__


def test_a_whole_step_is_recorded_by_the_script_and_runs_as_it_is_on_a_cpu(tmp_path: Path) -> None:
    plan = Plan(changes=(Change(strategy="cuda_graphs", setting={"whole": True}),))
    made = printed(plan)
    stands_alone(made)
    assert "self.train_step = recorded(self.train_step)" in made
    losses, _ = script_losses(loaded(made, tmp_path), "--seed", str(SEED))
    assert losses == losses_of(plan) == losses_of(Plan())


def test_attention_is_edited_in_the_script_too(tmp_path: Path) -> None:
    """The script edits the method's source as the trial does; nothing is looked for."""
    found = rewrite(attending_workload.build().model, torch.randn(16, 12, 16))
    assert [each["function"] for each in found["functions"]] == ["Attention.forward"]
    others = plan_of("amp", "fused_optimizer").changes
    change = Change(strategy="flash_attention", setting={"functions": found["functions"]})
    plan = REGISTRY.order(Plan(changes=(change, *others)))
    made = printed(plan)
    stands_alone(made)
    losses, _ = script_losses(loaded(made, tmp_path), "--seed", str(SEED))
    assert losses == losses_of(plan)
    assert losses != losses_of(plan_of("amp", "fused_optimizer"))
