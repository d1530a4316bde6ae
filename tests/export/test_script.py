"""The exported script trains what a trial trains, step for step, and is formatted."""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.export import printed as printed_code
from autoopt.export.script import Draft, known_of, script
from autoopt.export.targets import snippets
from autoopt.export.text import GIVEN, fold
from autoopt.records import Change, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry, Source, load_strategies
from autoopt.testing.method_cards import shipped
from autoopt.testing.strategies import example_of, sample_facts

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import export_strategies  # noqa: E402
import export_workloads  # noqa: E402
from script_running import SEED, facts_of, loaded, script_losses, trial_losses  # noqa: E402

from modules import run_python  # noqa: E402
from workloads.attention import rewrite  # noqa: E402

SEEDED = ("--seed", str(SEED))
STRATEGIES = (export_strategies.Anything(), export_strategies.Transforming(), export_strategies.Hidden())
REGISTRY = Registry(Source(each, "tests") for each in STRATEGIES)
BUILTIN = load_strategies()


def spec_of(name: str) -> str:
    return f"export_workloads:{name}"


def made_plan(setting: dict[str, Any] | None = None, parts: tuple[str, ...] = ()) -> Plan:
    changes = [Change(strategy="anything", setting=setting)] if setting else []
    changes += [Change(strategy="transforming", setting={"parts": list(parts)})] if parts else []
    return Plan(changes=tuple(changes))


def printed(name: str, plan: Plan = Plan(), registry: Registry = REGISTRY) -> str:  # noqa: B008
    return script(spec_of(name), plan, registry, facts=facts_of(spec_of(name)))


def stands_alone(made: str) -> None:
    for word in ("Not in this script", "import autoopt", "from autoopt"):
        assert word not in made


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
    stands_alone(made)
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
    plan = Plan(changes=(kept,))
    module = loaded(printed(name, plan, BUILTIN), tmp_path)
    assert script_losses(module, *SEEDED) == trial_losses(spec_of(name), plan, BUILTIN)
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
    for words in ("format --line-length 120 --diff", "check --select F,E9 --output-format concise"):
        done = run_python("-m", "ruff", *words.split(), "--isolated", "-", input=text, codes=(0, 1))
        assert done.returncode == 0, done.stdout


def test_snippets_come_from_recipes_and_a_broken_recipe_costs_nothing() -> None:
    found = snippets(
        Plan(changes=(Change(strategy="anything", setting={"with_batch": {"size": 4}}), Change(strategy="hidden"))),
        REGISTRY,
    )
    assert found[0].lightning == {"precision": "bf16-mixed"}
    assert found[0].transformers is None
    assert found[1].pytorch is None


# Every built-in strategy appears in a script, whose losses are those of the trial, number for number.

EXAMPLES = {strategy.name: example_of(strategy).setting for strategy in shipped()}
EXAMPLES["chunked_loss"] = {"path": "head", "rows": 5, "multiple": 4}  # of this workload
EXAMPLES["lora"] = {"rank": 2, "targets": ["blocks.0.out", "blocks.1.out"], "heads": ["head"]}
EXAMPLES["fp8"] = {"layers": ["blocks.0.out"], "recipe": "tensorwise", "emulate": True}
EXAMPLES["model_size"] = {"arguments": {"inner": 8}, "build": spec_of("attending")}
NARROW = {"pruning", "distillation"}
"""They need a model that runs with fewer channels."""
WRITTEN = {
    "compile": "compile_in_place(model",
    "cuda_graphs": "recorded(self.train_step)",
    "affinity": "sched_setaffinity",
}
"""Lines in the script of a strategy that is not trained with here: it compiles for long, or needs CUDA."""


def plan_of(*names: str) -> Plan:
    return BUILTIN.order(Plan(changes=tuple(Change(strategy=name, setting=EXAMPLES[name]) for name in names)))


def workload_of(plan: Plan) -> str:
    return "convolving" if NARROW & set(plan.names()) else "attending"


def losses_of(plan: Plan) -> list[float]:
    return trial_losses(spec_of(workload_of(plan)), plan, BUILTIN)[0]


def printed_with(plan: Plan) -> str:
    return printed(workload_of(plan), plan, BUILTIN)


def trained(made: str, folder: Path) -> list[float]:
    """Losses of a script that needs nothing of autoopt's."""
    stands_alone(made)
    before = torch.get_float32_matmul_precision()
    losses, _ = script_losses(loaded(made, folder), *SEEDED)
    torch.set_float32_matmul_precision(before)
    return losses


def groups(count: int = 7) -> dict[str, list[str]]:
    """Plans that together hold every strategy that can be trained with here, each beside others that it stands with."""
    made: list[list[str]] = [[] for _ in range(count)]
    for number, name in enumerate(name for name in EXAMPLES if name not in {*NARROW, *WRITTEN}):
        strategy = BUILTIN[name]
        distributed = ".distributed." in type(strategy).__module__ or plan_of(name).processes > 1
        if distributed or not example_of(strategy).trains:
            continue
        for turn in range(count):
            group = made[(number + turn) % count]
            if not any(name in BUILTIN[other].excludes or other in strategy.excludes for other in group):
                group.append(name)
                break
        else:
            made.append([name])
    return {"+".join(names): names for names in [*made, *([name] for name in sorted(NARROW))] if names}


@pytest.mark.parametrize("names", groups().values(), ids=groups())
def test_a_script_with_them_trains_as_the_trial_does(names: list[str], tmp_path: Path) -> None:
    plan = plan_of(*names)
    assert trained(printed_with(plan), tmp_path) == losses_of(plan)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not any(name in group for group in groups().values())])
def test_what_cannot_be_trained_with_here_is_written_or_left_to_who_starts_processes(name: str) -> None:
    made = printed_with(plan_of(name))
    if plan_of(name).processes > 1:
        assert "autoopt train" in made, "the script trains in one process, and who starts several is named"
        return
    stands_alone(made)
    compile(made, "optimized_train.py", "exec")
    assert WRITTEN.get(name, "") in made
    assert name in WRITTEN or ".distributed." in type(BUILTIN[name]).__module__


def test_a_whole_step_is_recorded_by_the_script_and_runs_as_it_is_on_a_cpu(tmp_path: Path) -> None:
    plan = Plan(changes=(Change(strategy="cuda_graphs", setting={"whole": True}),))
    made = printed_with(plan)
    assert "self.train_step = recorded(self.train_step)" in made
    assert trained(made, tmp_path) == losses_of(plan) == losses_of(Plan())


def test_attention_is_edited_in_the_script_too(tmp_path: Path) -> None:
    """The script edits the method's source as the trial does; nothing is looked for."""
    found = rewrite(export_workloads.attending().model, torch.randn(16, 12, 16))
    assert [each["function"] for each in found["functions"]] == ["Attention.forward"]
    others = plan_of("amp", "fused_optimizer").changes
    change = Change(strategy="flash_attention", setting={"functions": found["functions"]})
    plan = BUILTIN.order(Plan(changes=(change, *others)))
    losses = trained(printed_with(plan), tmp_path)
    assert losses == losses_of(plan)
    assert losses != losses_of(plan_of("amp", "fused_optimizer"))


# Folding decides what is known, and leaves the rest of the source as it stands.


def folded(source: str, **known: object) -> str:
    names = {name.replace("__", "."): value for name, value in known.items()}
    return fold(textwrap.dedent(source), names)  # type: ignore[arg-type]


def test_what_is_known_to_be_none_leaves_parameters_arguments_methods_and_their_documentation() -> None:
    source = '''
    class Step:
        """A step.

        Args:
            model: what is trained.
            scaler: or None,
                told twice.
        """

        def __init__(self, model, *, scaler=None):
            self.model = model
            self.scaler = scaler

        def scaled(self):
            assert self.scaler is not None
            with self.scaler:
                return 1
            return 2


    step = Step(model, scaler=scaler)
    '''
    known = {"scaler": None, "self__scaler": None, "self__scaled": None}
    assert folded(source, **known) == textwrap.dedent('''
    class Step:
        """A step.

        Args:
            model: what is trained.
        """

        def __init__(self, model):
            self.model = model


    step = Step(model)
    ''')
    kept = folded(source, scaler=GIVEN, self__scaler=GIVEN)
    assert "def __init__(self, model, *, scaler=None)" in kept
    assert "assert" not in kept


def test_an_elif_on_what_is_known_is_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        folded("if a:\n    b()\nelif plan.x:\n    c()\n", plan__x=True)


def test_every_condition_of_printed_code_is_decided() -> None:
    known = known_of(Draft(Plan(), BUILTIN), sample_facts())
    sources = [path.read_text() for path in Path(printed_code.__path__[0]).glob("*.py")]
    assert {f"plan.{name}" for source in sources for name in re.findall(r"\bplan\.(\w+)", source)} <= set(known)
