"""Two sides measured in turns: pairs of processes, rounds of blocks, and the arms that train them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.errors import TrialFailed
from autoopt.records import Change, Estimate, Noise, Plan
from autoopt.records.account import Row
from autoopt.records.messages import Block
from autoopt.search.accept.time_to_target import step_times
from autoopt.search.compare.arena import block_length
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Comparison, Decision, Rule, SideStatistics
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control
from autoopt.search.compare.statistics import MIN_BLOCKS, Rounds, ratio_of_totals, undisturbed
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel

A = Plan()
B = Plan(changes=(Change(strategy="candidate"),))
KINDS = ("normal", "heavy", "drifting", "bimodal")


def machine(effect: float = 1.0, kind: str = "heavy", seed: int = 0, step: float = 0.02, **fields) -> FakeMachine:
    """Plans that hold a change are ``effect`` times faster."""

    def behave(plan: Plan) -> Behaviour:
        return Behaviour(step_seconds=step / effect if plan.changes else step)

    return FakeMachine(**{"behave": behave, "noise": NoiseModel(kind), "seed": seed, **fields})


def run(fake: FakeMachine, rule: Rule | None = None, seed: int = 0, **arguments) -> Comparison:
    comparison = compare(
        fake.start, A, B, rule or Rule(max_seconds=300), clock=fake.clock, rng=np.random.default_rng(seed), **arguments
    )
    assert not fake.alive, "processes were left behind"
    return comparison


def rewrite(fake: FakeMachine, change: Callable[[str, Block], Block]) -> None:
    """Passes each block through a function of its side's label and itself."""
    start = fake.start

    def started(plan: Plan, label: str) -> Any:
        arm = start(plan, label)
        block = arm.block
        arm.block = lambda *length: change(label, block(*length))
        return arm

    fake.start = started


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("effect", "decisions"),
    [(1.5, {Decision.ACCEPT}), (0.6, {Decision.HARMFUL, Decision.REJECT})],
)
def test_large_effects_are_decided(kind, effect, decisions) -> None:
    for seed in range(5):
        fake = machine(effect, kind, seed)
        noise, _ = control(fake.start, A, Rule(), clock=fake.clock)
        found = run(fake, seed=seed, noise=noise)
        assert found.decision in decisions, found.reason
        assert found.estimate.low <= effect <= found.estimate.high


@pytest.mark.parametrize("kind", KINDS)
def test_placebos_are_not_kept(kind) -> None:
    for seed in range(15):
        fake = machine(1.0, kind, seed)
        noise, _ = control(fake.start, A, Rule(), clock=fake.clock)
        assert run(fake, seed=seed, noise=noise).decision is not Decision.ACCEPT


def test_figures_of_both_sides_are_reported() -> None:
    found = run(machine(2.0))
    assert found.candidate.samples_per_second == pytest.approx(3200, rel=0.15)
    assert found.incumbent.samples_per_second == pytest.approx(1600, rel=0.15)
    assert found.incumbent.step_seconds.p50 == pytest.approx(0.02, rel=0.15)
    assert found.incumbent.peak_memory_bytes == 1 << 28
    assert found.incumbent.samples_per_step == 32
    assert found.incumbent.startup.fixed_seconds == 2.0
    assert len(found.incumbent.fixed_seconds) == len(found.pairs)
    assert sum(row.seconds for row in found.rows) < found.seconds
    assert found.between_process_sd > 0


def test_loss_paths_run_from_the_first_step_without_a_gap() -> None:
    found = run(machine(1.5))
    for side in (found.incumbent, found.candidate):
        assert side.losses.steps == tuple(range(len(side.losses.steps)))
        assert side.losses.losses[:3] == pytest.approx([2.0, 2.0 / 1.01, 2.0 / 1.02])
        assert side.losses_again.steps[:1] == (0,)


def test_order_is_drawn_and_mirrored() -> None:
    fake = machine(1.3)
    order = []
    rewrite(fake, lambda label, block: order.append(label) or block)
    found = run(fake, Rule(max_seconds=600, until_error=0.02))
    quads, taken = set(), 0
    for pair in found.pairs:
        count = 2 * (pair.rounds + pair.disturbed)
        quads |= {tuple(order[at : at + 4]) for at in range(taken, taken + count - 3, 4)}
        taken += count
    i, c = "incumbent", "candidate"
    assert quads == {(i, c, c, i), (c, i, i, c)}
    assert {label for _, label in itertools.islice(fake.started, 0, None, 2)} == {i, c}, "who starts first is drawn too"


@pytest.mark.parametrize(
    ("lack", "retries"),
    [
        ({"memory_limit_bytes": 3 << 27}, False),
        ({"exclusive": True}, False),
        ({"retries_beyond": 3 << 27}, False),
        ({"retries_beyond": 1 << 27}, True),  # of one alone: its own
    ],
)
def test_processes_alternate_where_both_do_not_fit(lack: dict[str, Any], retries: bool) -> None:
    found = run(machine(1.8, **lack), Rule(max_seconds=600))
    assert found.mode == "alternating"
    assert found.decision is Decision.ACCEPT, found.reason
    assert found.estimate.low <= 1.8 <= found.estimate.high
    assert bool(found.candidate.allocation_retries) is retries
    assert retries or not found.incumbent.allocation_retries


CRASH = TrialFailed("crashed", "signal 11")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(Behaviour(memory_bytes=1 << 34), "out_of_memory:")]
    + [(Behaviour(fails=CRASH, fails_at=at), "crashed: signal 11") for at in (0, 5, 40)],
)
@pytest.mark.parametrize(("plan", "side"), [(A, "incumbent"), (B, "candidate")])
def test_a_failure_is_a_result_that_names_its_side(bad: Behaviour, reason: str, plan: Plan, side: str) -> None:
    usual = Behaviour(memory_bytes=1 << 20)
    found = run(FakeMachine(behave=lambda one: bad if one == plan else usual, memory_limit_bytes=1 << 30))
    assert found.decision is Decision.FAILED
    assert found.failure.side == side
    assert found.failure.reason.startswith(reason)
    assert ("incumbent" in found.reason) == (side == "incumbent")


@pytest.mark.parametrize("deadline", [0.0, 30.0])
def test_a_deadline_is_kept(deadline: float) -> None:
    fake = machine(1.02)
    found = run(fake, Rule(max_seconds=1000), deadline=deadline)
    assert found.decision is Decision.INCONCLUSIVE
    assert fake.clock() <= 1.3 * deadline
    assert (found.estimate is None) is (not fake.started) is (deadline == 0.0)


def test_until_error_goes_on_past_the_decision() -> None:
    decided = run(machine(2.0, seed=2))
    narrow = run(machine(2.0, seed=2), Rule(max_seconds=2000, max_pairs=60, until_error=0.05))
    assert narrow.decision is Decision.ACCEPT
    width = np.log(narrow.estimate.high / narrow.estimate.low) / 2
    assert width <= 0.051
    assert len(narrow.pairs) > len(decided.pairs)


def test_the_floor_describes_power_and_does_not_veto() -> None:
    noise = Noise(floor=0.30, process_sd=0.005, process_dof=12)
    found = run(machine(1.15, kind="quiet"), noise=noise)
    assert found.decision is Decision.ACCEPT


@given(st.floats(0.5, 3.0), st.integers(0, 10_000), st.sampled_from(KINDS), st.floats(0.002, 0.8))
@settings(max_examples=25, deadline=None)
def test_every_comparison_is_well_formed(effect, seed, kind, step) -> None:
    found = run(machine(effect, kind, seed, step), seed=seed)
    assert found.decision is not Decision.FAILED
    assert 0 < found.estimate.low <= found.estimate.value <= found.estimate.high
    assert found.estimate.n == len(found.pairs)
    if found.decision is Decision.ACCEPT:
        assert found.estimate.low > 1.0
        assert found.estimate.value > 1.01
    if found.decision is Decision.HARMFUL:
        assert found.estimate.high < 1.0
    assert found.disturbed_share <= 0.25


shares = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=30)


@given(shares)
@settings(max_examples=100, deadline=None)
def test_disturbed_blocks_are_chosen_without_looking_at_the_side(pairs) -> None:
    keep = undisturbed(pairs)
    assert keep == undisturbed([(b, a) for a, b in pairs])
    assert keep.count(False) <= len(pairs) // 4


CALM, ON_FOUR = (0.02, 0.02), (0.02, 0.08)


@pytest.mark.parametrize(
    ("shares", "gone"),
    [
        ([CALM] * 7 + [(0.02, 0.9)], {7}),  # a burst
        ([(0.9, 0.9)] * 8, set()),  # steady load
        ([(None, None)] * 8, set()),
        # time is taken from every busy core: the candidate has four, so the same bursts show four times as much there
        ([ON_FOUR] * 20 + [(0.12, 0.08)] * 2 + [(0.02, 0.48)] * 2, {20, 21, 22, 23}),
    ],
)
def test_bursts_are_left_out_on_both_sides_alike_and_steady_load_is_not(shares: list, gone: set[int]) -> None:
    assert {place for place, kept in enumerate(undisturbed(shares)) if not kept} == gone


def test_steps_are_the_unit_where_samples_cannot_be_counted() -> None:
    steps = Block(steps=10, samples=None, seconds=2.0)
    measured = SideStatistics(A, blocks=[steps]).side()
    assert (measured.samples_per_second, measured.samples_per_step) == (None, None)
    assert (measured.rate, measured.per_step) == (5.0, 1.0)
    comparison = Comparison(
        decision=Decision.ACCEPT,
        estimate=Estimate(value=2.0, low=1.9, high=2.1, n=2),
        incumbent=measured,
        candidate=SideStatistics(A, blocks=[steps.model_copy(update={"seconds": 1.0})]).side(),
    )
    assert step_times(comparison) == (0.2, 0.1)


def test_a_candidate_whose_samples_cannot_be_counted_fails_where_the_baselines_are() -> None:
    fake = machine(1.5)
    uncounted = {"samples": None}
    rewrite(fake, lambda label, block: block.model_copy(update=uncounted if label == "candidate" else {}))
    found = run(fake)
    assert found.decision is Decision.FAILED
    assert "cannot be counted" in found.reason


def test_a_comparison_that_goes_on_counts_the_pairs_it_has_and_decides_as_one_that_was_never_left() -> None:
    """The sequence of bounds may be looked at whenever one likes, so that leaving off and going on costs nothing."""
    for seed in range(6):
        fake = machine(1.15, "normal", seed)
        noise, _ = control(fake.start, A, Rule(), clock=fake.clock)
        short = run(fake, Rule(max_seconds=14.0), seed=seed, noise=noise)
        assert short.decision is Decision.INCONCLUSIVE
        assert short.pairs
        on = run(fake, Rule(max_seconds=600.0), seed=seed + 1, noise=noise, earlier=short.pairs)
        assert on.pairs[: len(short.pairs)] == short.pairs
        assert on.decision is Decision.ACCEPT, on.reason
        assert on.estimate.n == len(on.pairs)


def test_only_a_candidate_that_looks_worth_keeping_has_more_time() -> None:
    rule = Rule(max_seconds=14.0, more_seconds=300.0)
    better, none = machine(1.15, "normal", 1), machine(1.0, "normal", 1)
    assert run(better, rule).decision is Decision.ACCEPT
    found = run(none, rule)
    assert found.decision is not Decision.ACCEPT
    assert found.estimate is None or found.estimate.value < 1.15
    assert none.clock() < better.clock()


def test_a_figure_rests_on_two_pairs_of_processes_where_the_deadline_allows() -> None:
    rule = Rule(max_seconds=8.0, until_error=0.0)
    assert len(run(machine(1.1), rule).pairs) == 2
    assert len(run(machine(1.1), rule, deadline=8.0).pairs) < 2


def test_a_pair_that_was_started_gets_the_fewest_blocks_that_count() -> None:
    """Starts that took longer than the whole comparison was given left a pair of a few blocks that told nothing."""

    def behave(plan: Plan) -> Behaviour:
        return Behaviour(step_seconds=0.05, startup_seconds=60.0)

    slow = machine(behave=behave)
    assert len(run(slow, Rule(max_seconds=100.0), deadline=200.0).pairs) == 1
    assert not run(machine(behave=behave), Rule(max_seconds=100.0), deadline=121.0).pairs, "the deadline is one"


# From rows to ratios: totals over totals, errors from the scatter between rounds, nothing of a plan's own trimmed.


def row(seconds: float, samples: int | None = 32, steps: int = 4) -> Row:
    return Row(plan="{}", process="p", round=0, start=0.0, steps=steps, samples=samples, seconds=seconds)


def paired(incumbent: list[float], candidate: list[float]) -> list[tuple[Row, Row]]:
    return [(row(one), row(other)) for one, other in zip(incumbent, candidate, strict=True)]


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)), min_size=MIN_BLOCKS, max_size=30))
def test_the_ratio_is_that_of_totals(blocks: list[tuple[float, float]]) -> None:
    incumbent, candidate = map(list, zip(*blocks, strict=True))
    level = ratio_of_totals(paired(incumbent, candidate))
    assert level.value == pytest.approx(log(sum(incumbent) / sum(candidate)))
    swapped = ratio_of_totals(paired(candidate, incumbent))
    assert swapped.value == pytest.approx(-level.value)
    assert swapped.error == pytest.approx(level.error)


def test_a_stall_of_the_plan_itself_counts_in_full() -> None:
    calm, stalls = [0.2] * 20, [0.1] * 19 + [2.1]
    level = ratio_of_totals(paired(calm, stalls))
    assert level.value == pytest.approx(0.0), "half the step's time, and a stall that costs it all"
    assert level.error > 0.3, "one stall says little of how often they come"


@pytest.mark.parametrize("count", [MIN_BLOCKS, 12, 40])
def test_the_error_is_the_scatter_of_totals(count: int) -> None:
    rng = np.random.default_rng(count)

    def drawn() -> list[float]:
        return list(0.2 * np.exp(0.05 * rng.standard_normal(count)))

    found = [ratio_of_totals(paired(drawn(), drawn())) for _ in range(400)]
    truth = float(np.std([level.value for level in found]))
    widened = (count - 1) / (count - 3)
    assert np.sqrt(np.mean([level.error**2 for level in found])) == pytest.approx(truth * widened**0.5, rel=0.12)


def test_a_block_without_work_is_refused() -> None:
    with pytest.raises(ValueError, match="needs work and time"):
        ratio_of_totals([(row(0.2, steps=0, samples=None), row(0.2, samples=None))] * MIN_BLOCKS)
    with pytest.raises(ValueError, match=f"at least {MIN_BLOCKS}"):
        ratio_of_totals(paired([0.2], [0.2]))


def test_too_few_rounds_tell_nothing() -> None:
    rounds = Rounds()
    for _ in range(MIN_BLOCKS):
        assert rounds.level() is rounds.document(None, startup_seconds=1.0, seconds=2.0) is None
        rounds.add(row(0.2), row(0.1))
    pair = rounds.document(None, startup_seconds=1.0, seconds=2.0)
    assert pair.log_ratio == pytest.approx(log(2.0))


@pytest.mark.parametrize(
    ("step", "steps", "ramp"),
    [(None, 3, 0.05), (0.01, 3, 0.05), (0.1, 3, 0.05), (0.15, 2, 0.05), (0.18, 2, 0.05), (0.25, 1, 0.0), (5.0, 1, 0.0)],
)
def test_blocks_of_long_steps_hold_fewer(step, steps, ramp) -> None:
    assert block_length(Rule(), step) == (0.2, steps, ramp)


def test_steps_that_train_on_no_sample_are_a_failure_of_that_arm() -> None:
    empty = Block(steps=4, samples=0, seconds=0.3).model_dump()
    process: Any = SimpleNamespace(call=lambda task, **arguments: empty)
    with pytest.raises(TrialFailed, match="trained on no sample"):
        TrialArm(process, Plan()).block(0.3, 4, 0.1)
