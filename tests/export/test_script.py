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
from autoopt.registry import Registry, Source, load_strategies

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


def printed(name: str, plan: Plan = Plan()) -> str:  # noqa: B008
    return script(spec_of(name), plan, REGISTRY, facts=facts_of(spec_of(name)))


PARTS = ("dataset", "loss", "model", "optimizer", "step")
ORDER: dict[str, Any] = {"with_loader": {"num_workers": 1}}


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
ROWS = {
    **{f"untouched: {name}": (name, Plan()) for name in export_workloads.EVERY},
    **{f"changed: {name}, {which}": (name, made_plan(SETTINGS[which])) for name, which in FEW},
    **{f"every kind of transform: {name}": (name, made_plan(parts=PARTS)) for name in ("plain", "own_loader")},
    **{f"another order: {name}": (name, made_plan(ORDER, parts=("sampler", "collate")))
       for name in ("own_loader", "odd_sampler")},
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_workload_trains_as_the_trial_does(row: str, tmp_path: Path) -> None:
    name, plan = ROWS[row]
    made = printed(name, plan)
    for word in ("Not in this script", "import autoopt", "from autoopt"):
        assert word not in made
    expected, module = trial_losses(spec_of(name), plan, REGISTRY), loaded(made, tmp_path)
    assert script_losses(module, *SEEDED) == expected
    if size := REGISTRY.fold(plan).evaluation.get("batch_size"):
        assert module.Run(module.arguments(["--device", "cpu"])).valid.loader.batch_size == size
    if "order" in row:
        assert expected[0] != trial_losses(spec_of(name), Plan(), REGISTRY)[0]
    assert ("# Twice the loss, twice the gradient." in made) == ("transform" in row), "comments come along"


@pytest.mark.parametrize("name", ["plain", "own_loader", "odd_sampler"])
def test_validation_samples_are_kept_as_in_the_trial(name: str, tmp_path: Path) -> None:
    kept = Change(strategy="validation_loader", setting={"samples": {"where": "memory"}, "num_workers": 0})
    plan, registry = Plan(changes=(kept,)), load_strategies()
    module = loaded(script(spec_of(name), plan, registry, facts=facts_of(spec_of(name))), tmp_path)
    assert script_losses(module, *SEEDED) == trial_losses(spec_of(name), plan, registry)
    run = module.Run(module.arguments(["--device", "cpu"]))
    assert type(run.valid.loader.dataset).__name__ == "KeptSamples"
    assert type(run.loader.dataset).__name__ != "KeptSamples"


@pytest.mark.parametrize("name", ["given_generator", "odd_sampler", "accumulating"])
def test_resumed_script_goes_on_with_the_same_losses(name: str, tmp_path: Path) -> None:
    plan = made_plan({"with_batch": {"size": 4, "learning_rate_factor": 1.2, "warmup_steps": 5}})
    kept = plan if name == "accumulating" else Plan()
    module = loaded(printed(name, kept), tmp_path)
    whole, _ = script_losses(module, *SEEDED)
    for stop in (3, 7, 8):
        checkpoint = str(tmp_path / f"{stop}.pt")
        words = ["--device", "cpu", "--seed", str(SEED), "--checkpoint", checkpoint, "--checkpoint-every", str(stop)]
        for _ in itertools.islice(module.train(module.arguments(words)), stop):
            pass
        assert script_losses(module, *SEEDED, "--resume", checkpoint)[0] == whole[stop:]


def test_ends_at_the_target_that_is_asked_for(tmp_path: Path) -> None:
    module = loaded(printed("plain"), tmp_path)
    whole, accuracies = script_losses(module, *SEEDED)
    enough = accuracies[0]
    losses, metrics = script_losses(module, *SEEDED, "--target", str(enough))
    assert metrics == [enough]
    assert losses == whole[: len(losses)]
    assert len(losses) < len(whole)
    assert script_losses(module, *SEEDED, "--until-target")[1] == accuracies  # 0.99 is not reached


def test_what_cannot_be_printed_is_said() -> None:
    made = printed("plain", Plan(changes=(Change(strategy="hidden"),)))
    assert made.count("# Not in this script: ") == 1
    assert "# Not in this script: a change of the model" in made
    assert "inside a function" in made


def test_what_the_plan_needs_is_printed_and_nothing_else() -> None:
    text = printed("plain")
    for word in ("autocast", "scaler", "scheduler", "clip_grad", "compile", "samples_of", "Rebuild"):
        assert word not in text
    setting = {
        "with_precision": {"dtype": "float16", "loss_scaling": True},
        "with_flags": {"attention_off": ["flash", "cudnn"]},
    }
    changed = printed("plain", made_plan(setting))
    assert "torch.autocast(self.device.type, dtype=torch.float16)" in changed
    assert "scaler.step(self.optimizer)" in changed
    off = "    torch.backends.cuda.enable_flash_sdp(False)\n    torch.backends.cuda.enable_cudnn_sdp(False)\n"
    assert off in changed


def setups() -> st.SearchStrategy[dict[str, Any]]:
    """Some keywords of some methods of a setup."""
    flag, few = st.booleans(), st.integers(1, 4)
    methods: dict[str, dict[str, Any]] = {
        "with_loader": {"num_workers": st.integers(0, 3), "pin_memory": flag, "prefetch_factor": st.just(4)},
        "with_transfer": {"non_blocking": flag, "prefetch": st.just(2)},
        "with_precision": {"dtype": st.sampled_from(["bfloat16", "float16"]), "loss_scaling": flag,
                           "matmul": st.just("high")},
        "with_compile": {"mode": st.sampled_from(["default", "max-autotune"]), "dynamic": flag, "regional": flag,
                         "fullgraph": flag},
        "with_batch": {"size": st.integers(1, 64), "accumulation": few, "learning_rate_factor": st.just(1.5),
                       "warmup_steps": st.integers(1, 9)},
        "with_flags": {"threads": st.just(1), "interop_threads": st.just(1), "cudnn_benchmark": flag,
                       "attention_off": st.just(["flash", "cudnn"]), "affinity": st.just([0]),
                       "env": st.just({"OMP_NUM_THREADS": "1", "A": 'with "quotes"'}),
                       "multiprocessing_sharing_strategy": st.just("file_system")},
        "with_cadence": {"evaluate_every": st.just(7), "checkpoint_every": st.just(9)},
    }  # fmt: skip
    some = {name: st.fixed_dictionaries({}, optional=keywords) for name, keywords in methods.items()}
    return st.fixed_dictionaries({}, optional=some)


FACTS: dict[str, WorkloadFacts] = {}


@pytest.mark.slow
@settings(max_examples=25)
@given(
    setups(),
    st.lists(st.sampled_from(PARTS), unique=True),
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
