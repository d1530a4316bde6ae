"""The terminal: snapshots of the summary and the live frame, plain lines, and when which view is chosen.

After a change on purpose, set ``AUTOOPT_UPDATE_SNAPSHOTS=1`` for one run and look at the difference.
"""

from __future__ import annotations

import inspect
import io
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import sample
from autoopt import events as e
from autoopt.records import Estimate, EstimateKind, Plan, Prediction, Profile, Result, Speedup, Verdict
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt_reports import html
from autoopt_reports.console import console_for, profile_summary, summary
from autoopt_reports.frame import State, draw, stacked, trial_line
from autoopt_reports.live import LiveView, PlainView, View, describe, make_view
from autoopt_reports.terminal import encodable

Golden = Callable[[str], Result]
SNAPSHOTS = Path(__file__).parents[1] / "golden" / "terminal"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class FewSigns(io.StringIO):
    """A stream that holds ASCII alone."""

    encoding = "ascii"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def assert_snapshot(name: str, text: str) -> None:
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("AUTOOPT_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def printed(draw_on: Callable[[Console], None], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    draw_on(console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def run_events(result: Result, trials: int = 9) -> Iterator[e.Event]:
    """The events of a run up to the middle of its next trial."""
    yield e.RunStarted(at=0, spec=result.workload.spec, device_name="auto", budget_seconds=7200, run_directory="runs/x")
    yield e.EnvironmentRead(at=1, environment=result.environment)
    yield e.PhaseStarted(at=1, phase="benchmark")
    yield e.BaselineMeasured(at=60, baseline=result.baseline)
    yield e.NoiseMeasured(at=160, noise=result.noise)
    yield e.PhaseStarted(at=170, phase="simplify", round=1)
    if result.rounds:
        yield e.RoundMeasured(at=200, round=result.rounds[0])
    yield e.PhaseStarted(at=210, phase="optimize", round=2)
    for trial in result.trials[:trials]:
        at = trial.finished_at or 0.0
        predicted = trial.predicted.value if trial.predicted else None
        yield e.TrialStarted(
            at=at - 40, id=trial.id, round=1, strategy=trial.strategy, setting=trial.setting, predicted=predicted,
            remaining=max(0, 14 - trial.id),
        )  # fmt: skip
        yield e.TrialEnded(at=at, trial=trial)
        if trial.verdict is Verdict.KEPT:
            yield e.Kept(
                at=at,
                plan=result.best.plan,
                best=result.best,
                speedup=Speedup(throughput=trial.throughput, detail="over the incumbent before it"),
            )
    yield e.Warned(at=1300, text="the load rose")
    yield e.TrialStarted(
        at=1310, id=10, round=2, strategy="compile", setting={"mode": "max-autotune"}, predicted=1.15, remaining=5
    )
    yield e.TrialProgress(at=1330, id=10, note="compiling")


def state_of(result: Result) -> State:
    state = State()
    for event in run_events(result):
        state.update(event)
    return state


def frame_text(state: State, width: int, height: int = 24, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    file = encodable(stream)
    console = Console(file=file, width=width, height=height, color_system=None, legacy_windows=False)
    console.print(draw(state, 1348, 7200, width, height))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_live_frame(width: int, golden: Golden) -> None:
    assert_snapshot(f"live_{width}", frame_text(state_of(golden("win")), width))


def test_live_frame_before_anything_was_measured() -> None:
    assert_snapshot("live_start", frame_text(State(), 80))


@settings(max_examples=40)
@given(st.integers(40, 160), st.integers(14, 60), st.sampled_from(["win", "hostile", "out_of_memory"]), st.booleans())
def test_no_line_is_wider_than_the_terminal_and_the_frame_fits(
    width: int, height: int, name: str, ascii_only: bool
) -> None:
    stream = FewSigns() if ascii_only else None
    lines = frame_text(state_of(sample.DOCUMENTS[name]()), width, height, stream).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    if width >= 80 and name != "hostile":
        assert len(lines) <= max(height, 17)


@pytest.mark.parametrize("name", ["win", "no_gain", "interrupted", "out_of_memory"])
def test_summary(name: str, golden: Golden) -> None:
    report = Path("runs/x/report.html")
    assert_snapshot(f"summary_{name}", printed(lambda console: summary(golden(name), console, report=report)))


def test_profile_summary(golden_profile: Profile) -> None:
    report = Path("runs/x/profile.html")
    assert_snapshot("profile", printed(lambda console: profile_summary(golden_profile, console, report=report)))


@pytest.mark.parametrize(
    ("command", "following"),
    [
        ("autoopt profile train.py -- --epochs 3", "autoopt optimize train.py -- --epochs 3"),
        ("autoopt profile train.py --with torch,nvml", "autoopt optimize train.py"),
        ("autoopt profile -- python -m pkg.train", "autoopt optimize -- python -m pkg.train"),
    ],
)
def test_a_profile_names_the_command_that_goes_on_with_its_words(
    golden_profile: Profile, command: str, following: str
) -> None:
    reproduce = golden_profile.reproduce.model_copy(update={"command": command})
    profile = golden_profile.model_copy(update={"reproduce": reproduce})
    shown = printed(lambda console: profile_summary(profile, console), 200)
    assert f"Search and measure:    {following}\n" in shown


def test_strategies_that_one_reason_speaks_against_share_a_line(golden_profile: Profile) -> None:
    workers, *_ = golden_profile.predictions
    setting = {"forwards": ["a model's forward pass, as data"] * 40}
    tried = workers.model_copy(update={"strategy": "attention", "setting": setting})
    alone = "training is in one process"
    refused = [
        workers.model_copy(
            update={"strategy": name, "setting": {"size": 5}, "applies": False, "predicted": None, "reason": alone}
        )
        for name in ("bucket_size", "bucket_view")
    ]
    profile = golden_profile.model_copy(update={"predictions": (tried, *refused)})
    lines = printed(lambda console: profile_summary(profile, console), 200).splitlines()
    assert f" {alone}: bucket_size, bucket_view" in lines
    (line,) = [line for line in lines if "attention" in line]
    assert "simulated" in line, "what there is to a setting is cut, not wrapped"


def test_hostile_names_cannot_steer_the_terminal(golden: Golden) -> None:
    console = Console(file=io.StringIO(), width=80, color_system="truecolor", force_terminal=True)
    result = golden("hostile")
    summary(result, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    stream = io.StringIO()
    view = PlainView(stream, Clock())
    for event in run_events(result):
        view(event)
    for out in (text, stream.getvalue()):
        assert "\x1b[31m{{" not in out, "the colour came from a name"
        assert "\x07" not in out
        assert "\u202e" not in out
        assert "[bold]" in out, "markup in a name is text"


def test_commands_are_never_wrapped(golden: Golden) -> None:
    text = printed(lambda console: summary(golden("win"), console), 40)
    assert "autoopt train synthetic.photos:build --plan autoopt-runs/synthetic-1/plan.json\n" in text


def test_plain_lines(golden: Golden) -> None:
    stream = io.StringIO()
    result = golden("win")
    with make_view(stream, clock=Clock()) as view:
        assert isinstance(view, PlainView)
        for event in run_events(result):
            view(event)
        view(e.AblationMeasured(at=1400, ablation=result.ablation[0]))
        view(e.Verified(at=1500, best=result.best, speedup=result.speedup))
        view(e.Stopped(at=1501, stop=result.stop))
        view(e.RunEnded(at=1502, result=result, run_directory="runs/x"))
    assert_snapshot("plain", stream.getvalue())
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\[ *[0-9:]+\] |          ", line) for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("aside", "lines"),
    [
        ([("pin_memory", Verdict.NOT_APPLICABLE), ("cache", Verdict.NOT_TRIED), ("cache", Verdict.NOT_TRIED),
          ("channels_last", Verdict.NOT_APPLICABLE)],
         ["not applicable (2, reasons in the report): pin_memory, channels_last",
          "not tried (1, reasons in the report): cache"]),
        ([(f"strategy_{number:03}", Verdict.NOT_APPLICABLE) for number in range(99)],
         ["not applicable (99, reasons in the report): strategy_000, strategy_001, strategy_002, strategy_003, "
          "strategy_004 and 94 more"]),
    ],
    ids=["one line and not one each", "a long list of names is cut to five"],
)  # fmt: skip
def test_what_was_set_aside_is_told_at_once(golden: Golden, aside: list[tuple[str, Verdict]], lines: list[str]) -> None:
    trial = golden("win").trials[0]
    stream = io.StringIO()
    with PlainView(stream, Clock()) as view:
        for strategy, verdict in aside:
            view(e.TrialEnded(at=60, trial=trial.model_copy(update={"strategy": strategy, "verdict": verdict})))
        assert stream.getvalue() == "", "the next measured thing, or the end, ends the list"
    told = stream.getvalue().replace("\n          ", " ")
    assert [line.partition("] ")[2] for line in told.splitlines()] == lines


def test_where_nothing_was_kept_no_plan_is_said_to_be_unverified(golden: Golden) -> None:
    result = golden("win")
    best = result.best.model_copy(update={"plan": Plan()})
    assert describe(e.Verified(at=9, best=best, speedup=result.speedup)) == (
        "nothing was kept, so there is no plan to verify"
    )


def test_without_a_value_to_reach_a_gain_in_time_is_that_of_the_same_steps(golden: Golden) -> None:
    result = golden("win")
    trial = next(trial for trial in result.trials if trial.time_to_target is not None)
    for has_target, words in ((True, " to target"), (False, " for the same steps")):
        assert describe(e.TrialEnded(trial=trial, has_target=has_target)).endswith(words)
        earlier = result.speedup.model_copy(update={"headline": None})
        assert describe(e.Verified(best=result.best, speedup=earlier, has_target=has_target)).endswith(words)
        state = State()
        state.update(e.TrialEnded(trial=trial, has_target=has_target))
        line = trial_line(trial, 120, state.has_target)
        assert words[:4] in line.plain


def test_every_kind_of_event_has_its_line() -> None:
    kinds = {name for name, kind in vars(e).items() if isinstance(kind, type) and issubclass(kind, e.Event)} - {"Event"}
    assert {*re.findall(r"case events\.(\w+)\(", inspect.getsource(describe)), "TrialProgress"} == kinds


def test_at_most_one_heartbeat_a_minute_and_none_after_the_end(golden: Golden) -> None:
    stream, clock = io.StringIO(), Clock()
    result = golden("win")
    with make_view(stream, clock=clock) as view:
        assert isinstance(view, PlainView)
        clock.now = 500
        view.tick()
        assert stream.getvalue() == "", "nothing beats before the run began"
        for event in list(run_events(result))[:9]:
            view(event)
        lines = len(stream.getvalue().splitlines())
        for second in range(500, 681):
            clock.now = second
            view(e.TrialProgress(at=420, id=1, note=f"block {second}"))
            view.tick()
        beats = stream.getvalue().splitlines()[lines:]
        assert len(beats) == 3
        assert all("trial 1: still trying workers=4, block" in line for line in beats)
        view(e.RunEnded(at=700, result=result, run_directory="runs/x"))
        lines = len(stream.getvalue().splitlines())
        clock.now = 2000
        view.tick()
        assert len(stream.getvalue().splitlines()) == lines


def test_what_a_resumed_run_replays_is_known_but_not_printed_again(golden: Golden, tmp_path: Path) -> None:
    stream = io.StringIO()
    view = PlainView(stream, Clock())
    directory = RunDirectory(tmp_path)
    first = list(run_events(golden("win")))
    with Run.create(directory, {}, {}) as run:
        announce = e.Announcer(run.announced)
        announce.subscribe(run.note)
        for event in first[:-4]:
            announce(event)
    with Run.resume(directory) as run:
        announce = e.Announcer(run.announced)
        announce.subscribe(view)
        for event in first:
            announce(event)
    head, *lines = stream.getvalue().splitlines()
    assert "resumed: autoopt" in head
    told = [describe(event) for event in first[-4:]]
    assert [line.partition("] ")[2] for line in lines] == [line for line in told if line]
    assert lines
    assert len(view._state.trials) == 9


def test_which_view_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_view(Terminal()), LiveView)
    assert isinstance(make_view(io.StringIO()), PlainView)
    assert type(make_view(Terminal(), quiet=True)) is View, "which has no stream to write to"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_view(io.StringIO()), PlainView), "a log file is no terminal, whatever its colours"
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(Terminal()), PlainView)


def test_colours_follow_the_environment(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    def coloured(stream: io.StringIO, **variables: str) -> bool:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        summary(golden("win"), console_for(stream))
        return "\x1b[1;34m" in stream.getvalue()

    assert coloured(Terminal())
    assert not coloured(io.StringIO())
    assert not coloured(Terminal(), NO_COLOR="1")
    monkeypatch.delenv("NO_COLOR")
    assert coloured(io.StringIO(), FORCE_COLOR="1")
    monkeypatch.delenv("FORCE_COLOR")
    assert not coloured(Terminal(), TERM="dumb")


def test_the_live_view_draws_and_clears_up_after_itself(golden: Golden) -> None:
    result, stream, clock = golden("win"), Terminal(), Clock()
    with make_view(stream, clock=clock) as view:
        assert isinstance(view, LiveView)
        for event in run_events(result):
            view(event)
        clock.now = 18.0
        frame = printed(lambda console: console.print(view.frame()))
        assert "22:28 / 2:00:00" in frame, "the clock goes on between events"
        view(e.RunEnded(at=1502, result=result, run_directory="runs/x"))
    assert "\x1b[?25h" in stream.getvalue(), "the cursor is shown again"


def test_a_stream_of_few_signs_gets_ascii(golden: Golden) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    view = PlainView(stream, Clock())
    for event in run_events(golden("hostile")):
        view(event)
    summary(golden("win"), console_for(stream))
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "2.31x faster to target" in text
    encodable(few := FewSigns()).write("1.2×–3 µs")
    assert few.getvalue() == "1.2x-3 us"


def test_quality_is_ticked_only_where_each_kept_change_was_tested(golden: Golden) -> None:
    state = state_of(golden("win"))
    assert "quality ✓" in frame_text(state, 80)
    untested: Any = golden("win").trials[0].model_copy(update={"quality": None})
    state.update(e.TrialEnded(at=1400, trial=untested))
    assert "quality untested" in frame_text(state, 80)


def test_what_is_good_to_know_is_no_warning(golden: Golden) -> None:
    state, note = State(), e.Noted(at=3.0, text="the metric is val_loss")
    state.update(note)
    assert "the metric is val_loss" in (shown := frame_text(state, 100))
    assert "warning" not in shown
    assert describe(note) == "note: the metric is val_loss"
    page = html.render(golden("win").model_copy(update={"notes": (note.text,)}))
    section = page[page.index('<section id="notes">') :]
    assert note.text in section[: section.index("</section>")]
    assert '<section id="notes">' not in html.render(golden("win"))


def test_eta_needs_history_and_a_plan_and_stays_within_the_budget() -> None:
    state = State()
    assert state.eta(0, 100) is None
    state.trial_seconds, state.remaining = [10.0, 20.0, 30.0, 40.0], 3
    assert state.eta(0, 1000) == (60.0, 120.0)
    assert state.eta(950, 1000) == (50.0, 50.0)
    state.finished = True
    assert state.eta(0, 1000) is None


def test_unknown_events_do_no_harm() -> None:
    class Later(e.Event):
        pass

    state = State()
    state.update(Later(at=5))
    assert state.at == 5
    assert describe(Later()) == ""


@given(st.lists(st.tuples(st.floats(0.3, 3), st.floats(0, 0.3), st.floats(0, 0.3)), min_size=1, max_size=6))
def test_gains_that_stack_have_an_interval_no_narrower_than_any_of_them(
    gains: list[tuple[float, float, float]],
) -> None:
    each = [Estimate(value=v, low=v * (1 - below), high=v * (1 + above), n=3) for v, below, above in gains]
    product = stacked(each)
    assert product.value == pytest.approx(math.prod(gain.value for gain in each))
    for gain in each:
        assert product.high / product.value >= gain.high / gain.value * (1 - 1e-9)
        assert product.low / product.value <= gain.low / gain.value * (1 + 1e-9)
    assert stacked([]) is None


def gain(value: float, kind: EstimateKind = EstimateKind.SIMULATED) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=value, n=1, kind=kind)


PREDICTED = {"amp": gain(1.5), "cache": gain(1.5), "threads": gain(2.0, EstimateKind.BOUND), "allocator": None,
             "compile": gain(0.9), "fused": gain(3.0).model_copy(update={"low": 1.0})}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "head", "told"),
    [
        (
            e.FirstSteps(at=7.0, steps=24, step_seconds=0.06, shares={"forward": 0.3, "data": 0.5, "other": 0.01}),
            "first 24 steps: ",
            ["60.0 ms a step", "data 50.0 %, forward 30.0 %"],
        ),
        (
            e.Opportunities(at_most=((2.5, ("workers", "cache")), (1.2, ("amp",))), unknown=("a", *"bcdefgh")),
            "upper bounds of the gain: ",
            ["2.50× workers, cache", "1.20× amp", "8 need a measurement first"],
        ),
        (
            e.Opportunities(at_most=((1000.0, ("threads",)), (20.0, ("amp", "compile")), (1.2, ("cache",)))),
            "upper bounds of the gain: ",
            ["no bound for threads, amp, compile", "1.20× cache"],
        ),
        (e.Opportunities(), "upper bounds of the gain: ", ["none from the first steps"]),
        (
            e.Predicted(predictions=tuple(Prediction(strategy=n, predicted=p) for n, p in PREDICTED.items())),
            "predicted gains: ",
            ["1.50× amp, cache", "at most 2.00× threads", "no prediction for allocator", "at most 3.00× fused"],
        ),
        (e.Predicted(), "predicted gains: ", ["none"]),
    ],
)
def test_what_is_known_before_a_trial_is_shown(event: e.Event, head: str, told: list[str]) -> None:
    assert describe(event) == head + "; ".join(told)
    state = State()
    state.update(e.Opportunities(at_most=((2.6, ("shuffled",)),)))
    state.update(event)
    shown = frame_text(state, 140)
    assert all(line in shown for line in told)
    assert ("2.60" in shown) is isinstance(event, e.FirstSteps), "the newest alone"
