"""The exported script trains what a trial trains, step for step, and is formatted."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.export.script import script
from autoopt.export.targets import snippets
from autoopt.records import Change, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry, Source

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import export_strategies  # noqa: E402
import export_workloads  # noqa: E402
from script_running import SEED, facts_of, loaded, script_losses, trial_losses  # noqa: E402

SEEDED = ("--seed", str(SEED))
STRATEGIES = (export_strategies.Anything(), export_strategies.Transforming(), export_strategies.Hidden())
REGISTRY = Registry(Source(each, "tests") for each in STRATEGIES)


def spec_of(name: str) -> str:
    return f"export_workloads:{name}"


def made_plan(setting: dict[str, Any] | None = None, parts: tuple[str, ...] = ()) -> Plan:
    changes = [Change(strategy="anything", setting=setting)] if setting else []
    changes += [Change(strategy="transforming", setting={"parts": list(parts)})] if parts else []
    return Plan(changes=tuple(changes))


@pytest.mark.parametrize("name", export_workloads.EVERY)
def test_untouched_workload_trains_as_the_trial_does(name: str, tmp_path: Path) -> None:
    made = script(spec_of(name), Plan(), REGISTRY, facts=facts_of(spec_of(name)))
    assert "Not in this script" not in made
    assert script_losses(loaded(made, tmp_path), *SEEDED) == trial_losses(spec_of(name), Plan(), REGISTRY)


SETTINGS: list[dict[str, Any]] = [
    {"with_loader": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}},
    {"with_precision": {"dtype": "bfloat16", "matmul": "high"}},
    {"with_batch": {"size": 16, "learning_rate_factor": 1.5, "warmup_steps": 3}},
    {"with_batch": {"size": 4, "accumulation": 3}},
    {"with_flags": {"threads": 1}, "with_cadence": {"evaluate_every": 5}},
    {"with_evaluation": {"batch_size": 7}},
]
FEW = [("plain", 0), ("given_generator", 0), ("accumulating", 1), *((name, 2) for name in ("plain", "own_loader")),
       *((name, 3) for name in ("accumulating", "given_generator", "batch_sampler")), ("own_loader", 4),
       *((name, 5) for name in ("plain", "own_loader", "odd_sampler"))]  # fmt: skip


@pytest.mark.parametrize(("name", "which"), FEW)
def test_changed_workload_trains_as_the_trial_does(name: str, which: int, tmp_path: Path) -> None:
    plan = made_plan(SETTINGS[which])
    made = script(spec_of(name), plan, REGISTRY, facts=facts_of(spec_of(name)))
    assert "Not in this script" not in made
    module = loaded(made, tmp_path)
    assert script_losses(module, *SEEDED) == trial_losses(spec_of(name), plan, REGISTRY)
    size = module.Run(module.arguments(["--device", "cpu"])).valid.loader.batch_size
    assert size == SETTINGS[which].get("with_evaluation", {}).get("batch_size", size)


@pytest.mark.parametrize("name", ["plain", "own_loader"])
def test_every_kind_of_transform_is_printed(name: str, tmp_path: Path) -> None:
    plan = made_plan(parts=("dataset", "loss", "model", "optimizer", "step"))
    made = script(spec_of(name), plan, REGISTRY, facts=facts_of(spec_of(name)))
    assert "Not in this script" not in made
    assert "import autoopt" not in made
    assert "from autoopt" not in made
    assert "# Twice the loss, twice the gradient." in made
    assert script_losses(loaded(made, tmp_path), *SEEDED) == trial_losses(spec_of(name), plan, REGISTRY)


@pytest.mark.parametrize("name", ["own_loader", "odd_sampler"])
def test_another_order_and_other_batches_are_printed(name: str, tmp_path: Path) -> None:
    plan = made_plan({"with_loader": {"num_workers": 1}}, parts=("sampler", "collate"))
    made = script(spec_of(name), plan, REGISTRY, facts=facts_of(spec_of(name)))
    assert "Not in this script" not in made
    losses, metrics = trial_losses(spec_of(name), plan, REGISTRY)
    assert losses != trial_losses(spec_of(name), Plan(), REGISTRY)[0]
    assert script_losses(loaded(made, tmp_path), *SEEDED) == (losses, metrics)


@pytest.mark.parametrize("name", ["given_generator", "odd_sampler", "accumulating"])
def test_resumed_script_goes_on_with_the_same_losses(name: str, tmp_path: Path) -> None:
    plan = made_plan({"with_batch": {"size": 4, "learning_rate_factor": 1.2, "warmup_steps": 5}})
    kept = plan if name == "accumulating" else Plan()
    module = loaded(script(spec_of(name), kept, REGISTRY, facts=facts_of(spec_of(name))), tmp_path)
    whole, _ = script_losses(module, *SEEDED)
    for stop in (3, 7, 8):
        checkpoint = str(tmp_path / f"{stop}.pt")
        words = ["--device", "cpu", "--seed", str(SEED), "--checkpoint", checkpoint, "--checkpoint-every", str(stop)]
        for _ in itertools.islice(module.train(module.arguments(words)), stop):
            pass
        assert script_losses(module, *SEEDED, "--resume", checkpoint)[0] == whole[stop:]


def test_ends_at_the_target_that_is_asked_for(tmp_path: Path) -> None:
    module = loaded(script(spec_of("plain"), Plan(), REGISTRY, facts=facts_of(spec_of("plain"))), tmp_path)
    whole, accuracies = script_losses(module, *SEEDED)
    enough = accuracies[0]
    losses, metrics = script_losses(module, *SEEDED, "--target", str(enough))
    assert metrics == [enough]
    assert losses == whole[: len(losses)]
    assert len(losses) < len(whole)
    assert script_losses(module, *SEEDED, "--until-target")[1] == accuracies  # 0.99 is not reached


def test_what_cannot_be_printed_is_said() -> None:
    plan = Plan(changes=(Change(strategy="hidden"),))
    made = script(spec_of("plain"), plan, REGISTRY, facts=facts_of(spec_of("plain")))
    assert made.count("# Not in this script: ") == 1
    assert "# Not in this script: a change of the model" in made
    assert "inside a function" in made


def test_nothing_is_printed_that_the_plan_does_not_need() -> None:
    facts = facts_of(spec_of("plain"))
    text = script(spec_of("plain"), Plan(), REGISTRY, facts=facts)
    for word in ("autocast", "scaler", "scheduler", "clip_grad", "compile", "samples_of", "Rebuild"):
        assert word not in text
    half = made_plan({"with_precision": {"dtype": "float16", "loss_scaling": True}})
    changed = script(spec_of("plain"), half, REGISTRY, facts=facts)
    assert "torch.autocast(self.device.type, dtype=torch.float16)" in changed
    assert "scaler.step(self.optimizer)" in changed


def test_attention_that_is_off_is_switched_off_in_the_script() -> None:
    plan = made_plan({"with_flags": {"attention_off": ["flash", "cudnn"]}})
    text = script(spec_of("plain"), plan, REGISTRY, facts=facts_of(spec_of("plain")))
    assert "    torch.backends.cuda.enable_flash_sdp(False)\n    torch.backends.cuda.enable_cudnn_sdp(False)\n" in text


def setups() -> st.SearchStrategy[dict[str, Any]]:
    methods = {
        "with_loader": st.fixed_dictionaries(
            {"num_workers": st.integers(0, 3)}, optional={"pin_memory": st.booleans(), "prefetch_factor": st.just(4)}
        ),
        "with_transfer": st.fixed_dictionaries({}, optional={"non_blocking": st.booleans(), "prefetch": st.just(2)}),
        "with_precision": st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from(["bfloat16", "float16"]),
                "loss_scaling": st.booleans(),
                "matmul": st.just("high"),
            },
        ),
        "with_compile": st.fixed_dictionaries(
            {},
            optional={
                "mode": st.sampled_from(["default", "max-autotune"]),
                "dynamic": st.booleans(),
                "regional": st.booleans(),
                "fullgraph": st.booleans(),
            },
        ),
        "with_batch": st.fixed_dictionaries(
            {},
            optional={
                "size": st.integers(1, 64),
                "accumulation": st.integers(1, 4),
                "learning_rate_factor": st.just(1.5),
                "warmup_steps": st.integers(1, 9),
            },
        ),
        "with_flags": st.fixed_dictionaries(
            {},
            optional={
                "threads": st.just(1),
                "interop_threads": st.just(1),
                "cudnn_benchmark": st.booleans(),
                "attention_off": st.just(["flash", "cudnn"]),
                "affinity": st.just([0]),
                "env": st.just({"OMP_NUM_THREADS": "1", "A": 'with "quotes"'}),
                "multiprocessing_sharing_strategy": st.just("file_system"),
            },
        ),
        "with_cadence": st.fixed_dictionaries(
            {}, optional={"evaluate_every": st.just(7), "checkpoint_every": st.just(9)}
        ),
    }
    return st.fixed_dictionaries({}, optional=methods)  # type: ignore[arg-type]


FACTS: dict[str, WorkloadFacts] = {}


@pytest.mark.slow
@settings(max_examples=25)
@given(
    setups(),
    st.lists(st.sampled_from(["dataset", "loss", "model", "optimizer", "step"]), unique=True),
    st.sampled_from(export_workloads.EVERY),
)
def test_every_combination_is_formatted_and_compiles(setting: dict[str, Any], parts: list[str], name: str) -> None:
    if name not in FACTS:
        FACTS[name] = facts_of(spec_of(name))
    text = script(spec_of(name), made_plan(setting, tuple(parts)), REGISTRY, facts=FACTS[name])
    compile(text, "optimized_train.py", "exec")
    ruff = [sys.executable, "-m", "ruff"]
    format_ = [*ruff, "format", "--isolated", "--line-length", "120", "--diff", "-"]
    formatted = subprocess.run(format_, input=text, capture_output=True, text=True)
    assert formatted.returncode == 0, formatted.stdout
    lint = [*ruff, "check", "--isolated", "--select", "F,E9", "--output-format", "concise", "-"]
    linted = subprocess.run(lint, input=text, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


def test_snippets_come_from_recipes_and_a_broken_recipe_costs_nothing() -> None:
    found = snippets(
        Plan(changes=(Change(strategy="anything", setting={"with_batch": {"size": 4}}), Change(strategy="hidden"))),
        REGISTRY,
    )
    assert found[0].lightning == {"precision": "bf16-mixed"}
    assert found[0].transformers is None
    assert found[1].pytorch is None
