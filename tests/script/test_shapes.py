"""Trainings of every form, in real processes: what their samples are, whose their time is, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import load_strategies
from autoopt.script.applicable import marks_steps, own_setup
from autoopt.script.process import Recording
from autoopt.script.session import Session
from tests.script.conftest import StartScript, block_of, edited, facts_of, sites_of
from tests.script.test_sites import line_of


@pytest.mark.parametrize(
    ("words", "samples"),
    [
        ("graphs.py", 32),
        ("shapes.py texts", 12),
        ("shapes.py wrapped", 12),
        ("shapes.py silent", None),
        ("shapes.py nothing_counted", None),
        ("shapes.py physics", 64),
        ("shapes.py ode", 20),
        ("shapes.py policy", 16),
        ("shapes.py compiled", 12),
        ("shapes.py taken_by_hand", 12),
        ("shapes.py cycled", 12),
        ("shapes.py evaluates_long", 12),
        ("shapes.py forks", 12),
        ("by_hand.py", 12),
        ("by_hand.py loads", 12),
        ("-m package.train", 12),
    ],
)
def test_a_step_of_every_form(start_script: StartScript, words: str, samples: int | None) -> None:
    name, *more = words.split()
    sites = start_script.watch(name, *more)
    assert sites.unit == ("steps" if samples is None else "samples")
    with start_script(name, *more, sites=sites) as process:
        facts = WorkloadFacts.model_validate(process.call("autoopt.benchmark.tasks:ready", timeout=60.0)["facts"])
        found = process.call("autoopt.benchmark.facts:inspected", timeout=120.0, names=list(load_strategies([])))
        assert not {name: said["error"] for name, said in found.items() if "error" in said}
        block = block_of(process, 40)
    assert facts.batch_size == samples
    assert block.samples == (None if samples is None else 40 * samples)
    assert sum(block.stage_seconds.values()) == pytest.approx(block.seconds, rel=1e-3)
    if words.endswith("cycled"):
        assert block.stage_seconds["other"] < 0.8 * block.seconds, "steps that read nothing are split all the same"
    if words.endswith("evaluates_long"):
        assert block.stage_seconds["data"] < 0.6 * block.seconds
        assert sum(block.step_seconds) < 1.5 * block.seconds
    if words.endswith("policy"):
        assert block.stage_seconds["data"] > 0.2 * block.seconds, "the rollouts make the batches"
        lines = {site.line for site in sites.of("batch_without_loader")}
        assert lines, "where they are trained on"


@pytest.mark.parametrize("words", [(), ("loads",)])
def test_own_updates_end_with_what_comes_next(start_script: StartScript, words: tuple[str, ...]) -> None:
    """The weights of a step are those that the lines after its backward pass have made."""
    sites = start_script.watch("by_hand.py", *words, steps=50)
    assert not sites.of("optimizer", "step")
    assert len(sites.of("model")) == 1
    with start_script("by_hand.py", *words, sites=sites) as process:
        losses = block_of(process, 30).losses
        evaluated = process.call("autoopt.benchmark.tasks:evaluations", timeout=60.0, count=1, seconds=30.0)
    assert evaluated["seconds"], "the last step of an epoch ends before its evaluation"
    torch.manual_seed(0)
    x = torch.randn(240, 8)
    y = (x[:, 0] > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer, expected = torch.optim.SGD(model.parameters(), lr=0.1), list[float]()
    for inputs, labels in [*zip(x.split(12), y.split(12), strict=True)] * 2:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    first = next(n for n in range(10) if expected[n] == pytest.approx(losses[0], abs=1e-6))
    assert losses == pytest.approx(expected[first : first + 30], abs=1e-5)


def test_a_side_counts_in_the_unit_of_the_baseline(start_script: StartScript) -> None:
    sites = start_script.watch("shapes.py", "wrapped")
    with start_script("shapes.py", "wrapped", sites=sites.model_copy(update={"unit": "steps"})) as process:
        assert block_of(process, 5).samples is None


def test_a_later_loop_with_another_model_ends_steps_of_its_own(start_script: StartScript) -> None:
    sites = start_script.watch("shapes.py", "in_two", "300")
    assert sites.period == (1,)
    with start_script("shapes.py", "in_two", "300", sites=sites) as process:
        assert block_of(process, 35).samples == 35 * 8, "the first loop, which has taken one step of 36 before"
        block_of(process, 10)
        later = block_of(process, 20)
    assert later.samples == 20 * 12
    assert len(later.losses) == 20


def ending(start_script: StartScript, *words: str) -> TrialFailed | WorkloadError:
    sites = start_script.watch("shapes.py", *words)
    with (
        start_script("shapes.py", *words, sites=sites) as process,
        pytest.raises((TrialFailed, WorkloadError)) as caught,
    ):
        block_of(process, 1000)
    return caught.value


@pytest.mark.parametrize("how", ["leaves", "leaves_with_words", "leaves_within", "tells_nothing"])
def test_a_script_that_leaves_in_its_own_way_has_ended(start_script: StartScript, how: str) -> None:
    error = ending(start_script, how, "60")
    assert "the script ended after" in error.message
    assert getattr(error, "where", "") == "script ended"


@pytest.mark.parametrize(
    ("how", "said"),
    [("fails_after", "no plot without a display"), ("asks_after", "asks for something on standard input")],
)
def test_a_script_that_fails_after_its_training_says_at_what(start_script: StartScript, how: str, said: str) -> None:
    assert said in ending(start_script, how, "60").message


@pytest.mark.parametrize(
    ("given", "samples", "counts"),
    [((8, None, 4, 0), 8 + 8 + 4 + 4, True), ((None, 8), 8, False)],
    ids=["a step that reads nothing new trains on as many again", "no unit where the first step does not tell"],
)
def test_samples_of_steps(given: tuple[int | None, ...], samples: int, counts: bool) -> None:
    session = Session(stops=False)
    for each in given:
        session.count(each)
        session.step_end()
    assert (session.samples, session.counts) == (samples, counts)


def test_sites_of_an_earlier_record_count_samples() -> None:
    assert Sites(command=("python", "train.py"), cwd=".").unit == "samples"


# Scripts whose loop lies in a library: found, measured, and patched at the arguments of its Trainer.

WORKERS = Change(strategy="workers", setting={"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True})
BFLOAT16 = Change(strategy="amp", setting={"dtype": "bfloat16"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "made", "wanted"),
    [
        ("trainer_transformers.py", "arguments = TrainingArguments(",
         {"dataloader_num_workers=1,", "dataloader_prefetch_factor=2,", "dataloader_persistent_workers=True,",
          "bf16=True,"}),
        ("trainer_lightning.py", "trainer = L.Trainer(",
         {"num_workers=1", "persistent_workers=True", 'precision="bf16-mixed"'}),
    ],
)  # fmt: skip
def test_the_arguments_of_a_trainer_are_what_is_patched(
    start_script: StartScript, folder: Path, script: str, made: str, wanted: tuple[str, ...]
) -> None:
    pytest.importorskip("transformers" if "transformers" in script else "lightning")
    sites = start_script.watch(script)
    (trainer,) = sites.of("trainer")
    assert trainer.line == line_of(script, made)
    assert len(sites.of("loader_training")) == len(sites.of("model")) == 1
    plan = Plan(changes=(WORKERS, BFLOAT16))
    with start_script(script, sites=sites, plan=plan) as process:
        assert facts_of(process).max_steps == 100000
        assert block_of(process, 8).samples == 8 * 16
    patch = placed(sites, plan, load_strategies([]), "cpu").patch
    assert [change.how for change in patch.changes] == ["patched", "patched"]
    added = " ".join(line[1:] for line in patch.diff.splitlines() if line.startswith("+"))
    assert all(argument in added for argument in wanted)


@pytest.mark.parametrize("script", ["plain.py", pytest.param("trainer_lightning.py", marks=pytest.mark.slow)])
def test_a_copy_of_the_model_computes_with_its_own_weights(start_script: StartScript, script: str) -> None:
    """A LightningModule copies its call, too: all that was tried on a copy of one was tried on the module itself."""
    if "lightning" in script:
        pytest.importorskip("lightning")
    with start_script(script, sites=start_script.watch(script)) as process:
        found = process.call("tests.script.in_process:copy_without_weights", timeout=60.0)
    assert found["copy"] == 0.0 != found["model"]


@pytest.mark.parametrize(("lines", "batches"), [(2, [2]), (1, [1, 1])])
def test_losses_of_two_lines_are_terms_of_one_batch(lines: int, batches: list[int]) -> None:
    """An actor and its critic were two batches of a step, and the optimizer's step was said to add them up."""
    recording, model = Recording(), torch.nn.Linear(2, 1)

    def passed() -> None:
        recording.forward(model, (torch.ones(3, 2),), {}, True)

    if lines == 2:
        passed()
        recording.backward(None)
        passed()
        recording.backward(None)
    else:
        for _ in range(2):
            passed()
            recording.backward(None)
    assert [len(calls) for calls in recording.batches] == batches


@pytest.mark.slow
def test_a_loader_that_a_library_rebuilds_is_patched_where_the_user_makes_it(
    start_script: StartScript, folder: Path
) -> None:
    pytest.importorskip("accelerate")
    sites = start_script.watch("prepared.py")
    (loader,) = sites.of("loader_training")
    assert loader.line == line_of("prepared.py", "loader = DataLoader(")
    assert loader.direct
    plan = Plan(changes=(WORKERS,))
    with start_script("prepared.py", sites=sites, plan=plan) as process:
        assert facts_of(process).loader.num_workers == 1
        assert block_of(process, 8).samples == 8 * 16, "it reads a batch ahead"
    both = Plan(changes=(WORKERS, BFLOAT16))
    changes = placed(sites, both, load_strategies([]), "cpu").patch.changes
    lines = [loader.line, line_of("prepared.py", "accelerator = Accelerator(")]
    assert [(change.how, change.line) for change in changes] == [("patched", line) for line in lines]


# Scripts that compile their models themselves: profiled and predicted as they are.

REPLAYED = Change(strategy="compile", setting={"mode": "reduce-overhead"})


@pytest.mark.parametrize("way", ["", "in_place"])
def test_it_is_measured_compiled(start_script: StartScript, way: str) -> None:
    process = start_script("compiles.py", *way.split())
    sites = sites_of(process)
    compiled = own_setup(sites).compile
    assert compiled is not None
    assert (compiled.mode, compiled.dynamic) == (None, None if way else False)
    assert process.call("tests.script.in_process:compiled_runs", timeout=60.0) == {"runs": 2, "tried": None}
    known = start_script("compiles.py", *way.split(), sites=sites)
    assert known.call("tests.script.in_process:compiled_runs", timeout=60.0)["runs"] == 2


def test_another_script_is_not(start_script: StartScript) -> None:
    assert own_setup(start_script.watch("plain.py")).compile is None


def test_steps_are_marked_where_graphs_hold_the_gradients_of_micro_batches(
    start_script: StartScript, folder: Path
) -> None:
    compiled = "else:\n    model = torch.compile(net, backend=counted, mode=None, dynamic=False)\n"
    edited(folder, "compiles.py", ("if sys.argv[1:]", "model = net\nif False"), (compiled, ""))
    sites = start_script.watch("compiles.py")
    registry = load_strategies(())
    assert marks_steps(registry.fold(Plan(changes=(REPLAYED,))), sites)
    text = placed(sites, Plan(changes=(REPLAYED,)), registry, "cuda").texts["compiles.py"]
    assert 'net.compile(mode="reduce-overhead")\ntorch.compiler.cudagraph_mark_step_begin()\n' in text
    assert "    optimizer.step()\n    torch.compiler.cudagraph_mark_step_begin()\n" in text
    alone: Sites = sites.model_copy(update={"accumulation": 1})
    assert "mark_step" not in placed(alone, Plan(changes=(REPLAYED,)), registry, "cuda").texts["compiles.py"]
