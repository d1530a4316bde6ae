"""The live view: events in, a plain state out; and one frame of it, a state and a moment in, a renderable out. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from rich.box import SQUARE
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from autoopt import events
from autoopt.events import Event
from autoopt.records import Configuration, Estimate, Round, Speedup, Trial, Verdict
from autoopt_reports.terminal import (
    MARKS,
    STYLES,
    clock_text,
    first_steps_text,
    fit,
    opportunity_texts,
    prediction_texts,
    ratio_text,
    trial_change,
    trial_outcome,
)
from autoopt_reports.view import units
from autoopt_reports.view.quality import claim_of
from autoopt_reports.view.text import change_name, name
from autoopt_reports.view.trials import UNMEASURED, WORDS

E = TypeVar("E", bound=Event)

PHASES: dict[events.Phase, str] = {
    "benchmark": "measuring the baseline",
    "simplify": "measuring each stage and its ceiling",
    "optimize": "trying changes",
    "ablate": "removing each kept change once",
    "verify": "training baseline and plan",
}
"""Phases in their order, each with its work."""


@dataclass(slots=True)
class Running:
    """The trial in progress."""

    started: events.TrialStarted
    since: float
    progress: events.TrialProgress | None = None


@dataclass(slots=True)
class State:
    """Everything the views show. ``latest``: event of each kind; ``at``: the run's clock at the last event."""

    run: events.RunStarted | None = None
    phase: events.Phase | None = None
    phase_round: int = 0
    detail: str = ""
    latest: dict[type[Event], Event] = field(default_factory=dict)
    best: Configuration | None = None
    speedup: Speedup | None = None
    running: Running | None = None
    has_target: bool = True
    trials: deque[Trial] = field(default_factory=lambda: deque(maxlen=40))
    trial_seconds: list[float] = field(default_factory=list)
    remaining: int | None = None
    claims: list[str] = field(default_factory=list)
    gained: list[Estimate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finished: bool = False
    at: float = 0.0

    def last(self, kind: type[E]) -> E | None:
        """The latest event of a kind."""
        found = self.latest.get(kind)
        return found if isinstance(found, kind) else None

    def update(self, event: Event) -> None:
        """Takes an event in; kinds that are not known change nothing but the clock."""
        self.at, self.latest[type(event)] = max(self.at, event.at), event
        match event:
            case events.RunStarted():
                self.run = event
            case events.EnvironmentRead(environment=seen) if self.run is not None:
                device, torch = seen.device_name or seen.device, seen.torch or self.run.torch
                self.run = self.run.model_copy(update={"device_name": device, "torch": torch})
            case events.PhaseStarted():
                self.phase, self.phase_round, self.detail = event.phase, event.round, event.detail
                self.running = None
            case events.TrialStarted():
                self.running, self.detail = Running(event, event.at), ""
                self.remaining = self.remaining if event.remaining is None else event.remaining
            case events.TrialProgress() if self.running is not None and self.running.started.id == event.id:
                self.running.progress = event
            case events.TrialEnded(trial=trial):
                self.detail, self.has_target = "", event.has_target
                if self.running is not None and self.running.started.id == trial.id:
                    self.running = None
                if trial.verdict in UNMEASURED:
                    return
                self.trials.appendleft(trial)
                self.trial_seconds += [trial.seconds] if trial.seconds else []
                if trial.verdict is Verdict.KEPT:
                    self.gained += [trial.throughput] if trial.throughput is not None else []
                    self.claims.append(claim_of(trial.quality))
            case events.Kept():
                self.best = event.best
            case events.Verified():
                self.best, self.speedup = event.best, event.speedup
            case events.AblationMeasured():
                self.detail = event.ablation.strategy
            case events.Warned():
                self.warnings.append(event.text)
            case events.Noted():
                self.notes.append(event.text)
            case events.Stopped():
                self.running = None
            case events.RunEnded(result=result):
                self.finished, self.running = True, None
                self.best, self.speedup = result.best, result.speedup

    def eta(self, elapsed: float, budget: float) -> tuple[float, float] | None:
        """Seconds to go, from and to: the quartiles of past trials times the trials to come, within the budget.

        None until the planner reported how many are to come and a few have ended.
        """
        if self.remaining is None or len(self.trial_seconds) < 3 or self.finished:
            return None
        ranked = sorted(self.trial_seconds)
        low, high = ranked[len(ranked) // 4], ranked[(3 * len(ranked)) // 4]
        left = max(0.0, budget - elapsed)
        count = self.remaining + (1 if self.running else 0)
        return min(left, low * count), min(left, high * count)


def stacked(gains: list[Estimate]) -> Estimate | None:
    """The product of gains that were measured one upon the other, each in a comparison of its own.

    The half widths of independent estimates add as squares, on the log scale. None where nothing was measured.
    """
    if not gains:
        return None
    middle = sum(math.log(gain.value) for gain in gains)
    below = math.hypot(*(math.log(gain.value / gain.low) for gain in gains))
    above = math.hypot(*(math.log(gain.high / gain.value) for gain in gains))
    return Estimate(
        value=math.exp(middle),
        low=math.exp(middle - below),
        high=math.exp(middle + above),
        confidence=min((gain.confidence for gain in gains if gain.confidence is not None), default=None),
        n=min(gain.n for gain in gains),
    )


OUTCOME = 27
"""Columns of the longest outcome."""
VERDICT = 1 + max(len(words) for verdict, words in WORDS.items() if verdict not in UNMEASURED)
NARROW = 66  # under this width the mark alone reports the verdict
KEYS = " Ctrl-C: finish this trial and report · twice: stop now, journal kept"


def draw(state: State, elapsed: float, budget: float, width: int, height: int) -> RenderableType:
    """The whole view, at most ``height`` lines of ``width`` cells."""
    inner = max(20, width - 4)
    rows = max(1, min(6, height - 12))
    times = elapsed, budget
    parts: list[RenderableType] = [_title(state, *times, width), _numbers(state, width), _phases(state, *times, width)]
    if (measured := state.last(events.RoundMeasured)) is not None:
        parts.append(_panel(stages_lines(measured.round, inner), "where the time goes (best so far)", width))
    parts.append(_panel(_trials(state, elapsed, inner, rows), "trials", width))
    if state.warnings:
        count = len(state.warnings)
        text = f" {count} warning{'s' if count != 1 else ''}, the last: {name(state.warnings[-1], 120)}"
        parts.append(Text(fit(text, width), style="yellow"))
    elif state.notes:
        parts.append(Text(fit(f" {name(state.notes[-1], 120)}", width), style="dim"))
    parts.append(Text(fit(KEYS, width), style="dim"))
    return Group(*parts)


def _panel(lines: list[Text], title: str, width: int) -> Panel:
    return Panel(
        Group(*lines), title=title, title_align="left", box=SQUARE, width=width, padding=(0, 1), border_style="dim"
    )


def _ends(left: Text, right: str, width: int) -> Text:
    """``left`` and ``right`` at the two ends of a line."""
    room = width - len(right) - 1
    left.truncate(max(0, room), overflow="ellipsis")
    return Text.assemble(left, " " * max(1, width - left.cell_len - len(right)), right)


def _title(state: State, elapsed: float, budget: float, width: int) -> Text:
    words = Text("autoopt", style="bold")
    if state.run is not None:
        run = state.run
        torch = f" · torch {name(run.torch, 16)}" if run.torch else ""
        words.append(f" · {name(run.spec, 40)} · {name(run.device_name, 24)}{torch}", style="not bold")
    return _ends(words, f"{clock_text(elapsed)} / {clock_text(budget)}", width)


def _numbers(state: State, width: int) -> Text:
    """Baseline, best and quality in one line."""
    text = Text(" ")
    measured, noise = state.last(events.BaselineMeasured), state.last(events.NoiseMeasured)
    if measured is None or measured.baseline.step_seconds is None:
        seen = state.last(events.FirstSteps)
        shown = f"first steps: {first_steps_text(seen)}" if seen is not None else "measuring the baseline"
        text.append(shown, style="dim")
        text.truncate(width, overflow="ellipsis")
        return text
    text.append("Baseline ")
    text.append(f"{units.duration(measured.baseline.step_seconds.p50)}/step", style="bold")
    if noise is not None and noise.noise.floor is not None:
        text.append(f" ±{units.percent(noise.noise.floor)}", style="dim")
    text.append("  ")
    if state.best is None or state.best.plan == measured.baseline.plan:
        text.append("Best: none yet", style="dim")
    else:
        text.append("Best ")
        if state.best.step_seconds is not None:
            text.append(units.duration(state.best.step_seconds.p50) + " ")
        text.append(_gain(state), style="bold blue")
        quality = "lost" if "lost" in state.claims else MARKS[Verdict.KEPT]
        if "undecided" in state.claims:
            quality = MARKS[Verdict.INCONCLUSIVE]
        if not state.claims or "not_tested" in state.claims:  # held only where every kept trial passed a gate
            quality = "untested"
        text.append(f"  quality {quality}")
    text.truncate(width, overflow="ellipsis")
    return text


def _gain(state: State) -> str:
    """The verified speedup with its interval; before that the product of what was kept, not run whole yet ("~")."""
    speedup = state.speedup
    if speedup is not None and speedup.headline is not None:
        found = speedup.headline
        return units.ratio(found.value) if found.estimate is None else ratio_text(found.estimate)
    if speedup is not None and (speedup.time_to_target or speedup.throughput):
        return ratio_text(speedup.time_to_target or speedup.throughput)
    product = stacked(state.gained)
    return f"~{ratio_text(product)}" if product is not None else ""


def _phases(state: State, elapsed: float, budget: float, width: int) -> Text:
    text = Text(" ")
    here = [*PHASES].index(state.phase) if state.phase in PHASES else -1
    for place, phase in enumerate(PHASES):
        done = place < here or state.finished
        now = place == here and not state.finished
        mark = "●" if done else "◐" if now else "○"
        round_ = f" ({state.phase_round})" if now and state.phase_round and phase in {"simplify", "optimize"} else ""
        text.append(f"{mark} {phase}{round_}  ", style="bold" if now else "" if done else "dim")
    eta = state.eta(elapsed, budget)
    if state.finished:
        left = "done"
    elif eta is None:
        left = f"≤{clock_text(budget - elapsed)} left"
    else:
        low, high = (max(1, round(seconds / 60)) for seconds in eta)
        left = f"ETA {low}–{high} min" if high > low else f"ETA {low} min"
    return _ends(text, left, width)


def stages_lines(round_: Round, width: int) -> list[Text]:
    """``decode ███ 48%`` for each stage that adds to the step, flowing over as many lines as it takes."""
    shares = [
        (s.name, s.exposed_seconds / round_.step_seconds)
        for s in round_.stages
        if s.exposed_seconds is not None and s.exposed_seconds / round_.step_seconds >= 0.005
    ]
    if not shares:
        return [Text(units.NOT_MEASURED, style="dim")]
    rest = 1 - sum(share for _, share in shares)
    if rest >= 0.005:
        shares.append(("other", rest))
    lines, line = [], Text()
    for stage, share in shares:
        bold = "bold" if stage == round_.bottleneck else ""
        bar = "█" * max(1, round(share * 20))
        piece = Text.assemble((fit(name(stage, 20).text, 20), bold), " ", (bar, "blue"), f" {share * 100:.0f}%")
        if line.cell_len and line.cell_len + 3 + piece.cell_len > width:
            lines.append(line)
            line = Text()
        line.append("   " if line.cell_len else "")
        line.append_text(piece)
    return [*lines, line]


def _trials(state: State, elapsed: float, width: int, rows: int) -> list[Text]:
    lines = []
    if state.running is not None:
        lines.append(_running(state, elapsed, width))
    elif state.detail:
        lines.append(Text(fit(state.detail, width), style="bold"))
    lines += [trial_line(trial, width, state.has_target) for trial in list(state.trials)[: rows - len(lines)]]
    if not lines:
        found = ["none yet"]
        if (predicted := state.last(events.Predicted)) is not None:
            found = prediction_texts(predicted)
        elif (seen := state.last(events.Opportunities)) is not None:
            found = opportunity_texts(seen)
        lines = [Text(fit(text, width), style="dim") for text in found[:rows]]
    return lines + [Text("") for _ in range(rows - len(lines))]


def _row(place: int, mark: str, change: str, outcome: str, verdict: str, width: int, style: str) -> Text:
    """One line of the trial list; the change takes what room the others leave."""
    last = VERDICT if width >= NARROW else 0
    room = max(8, width - 7 - OUTCOME - last)
    if len(outcome) > OUTCOME:
        room = max(8, min(room, len(change)))
    left = Text.assemble(f"#{place:<4}", (f"{mark} ", style), fit(change, room).ljust(room), " ")
    left.append(fit(outcome, max(4, width - 8 - room - last)))
    if not last:
        return left
    return Text.assemble(left, " " * max(1, width - left.cell_len - len(verdict)), (verdict, style))


def trial_line(trial: Trial, width: int, has_target: bool = True) -> Text:
    verdict, style = WORDS[trial.verdict], STYLES.get(trial.verdict, "dim")
    reported = trial_change(trial), trial_outcome(trial, has_target)
    return _row(trial.id, MARKS[trial.verdict], *reported, verdict, width, style)


def _running(state: State, elapsed: float, width: int) -> Text:
    running = state.running
    assert running is not None
    started, progress = running.started, running.progress
    if progress is not None and progress.ratio is not None and progress.low is not None and progress.high is not None:
        outcome = f"{units.ratio(progress.ratio)} [{progress.low:.2f}–{progress.high:.2f}]"
    else:
        outcome = f"predicted {units.ratio(started.predicted)}" if started.predicted is not None else "no prediction"
    note = f"{name(progress.note, 24).text} " if progress is not None and progress.note else ""
    reported = f"{note}{clock_text(elapsed - running.since)}"[-24:]
    change = change_name(started.strategy, started.setting, started.companions, 60).text
    return _row(started.id, "▶", change, outcome, reported, width, "bold")
