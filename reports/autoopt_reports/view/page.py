"""The whole report as data: one view for each section, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result
from autoopt_reports.view import units
from autoopt_reports.view.adopt import Adopt, PatchView, adopt_view, patch_view
from autoopt_reports.view.closing import AdviceView, Detail, advice_views, commands, machine_lines, peak_lines
from autoopt_reports.view.learning import Learning, learning_view
from autoopt_reports.view.pipeline import Lanes, lanes_views, pipeline_headline
from autoopt_reports.view.roofline import Roofline, roofline_view
from autoopt_reports.view.scaling import (
    ModelScalingView,
    ScalingView,
    TuningView,
    model_scaling_view,
    scaling_view,
    tuning_view,
)
from autoopt_reports.view.search import SearchSection, search_view
from autoopt_reports.view.stages import StagesView, stages_view
from autoopt_reports.view.steps import Forest, Waterfall, forest_view, waterfall_view
from autoopt_reports.view.text import Name, Number, Phrase, name, number, say
from autoopt_reports.view.tradeoff import Tradeoff, tradeoff_views
from autoopt_reports.view.trials import Predictions, TrialGroup, account_phrase, predictions_view, trial_groups
from autoopt_reports.view.trust import Check, trust_checks
from autoopt_reports.view.verdict import VerdictView, verdict_view


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the page shows. A section that has nothing to show is None and says so."""

    title: Name
    subtitle: Phrase
    verdict: VerdictView
    trust: tuple[Check, ...]
    adopt: Adopt
    patch: PatchView | None
    waterfall: Waterfall | None
    forest: Forest | None
    stages: StagesView | None
    lanes: tuple[Lanes, ...]
    lanes_headline: Phrase
    scaling: ScalingView | None
    roofline: Roofline | None
    learning: Learning | None
    tradeoffs: tuple[Tradeoff, ...]
    model_scaling: ModelScalingView | None
    tuning: TuningView | None
    predictions: Predictions | None
    search: SearchSection
    groups: tuple[TrialGroup, ...]
    account: Phrase
    not_measured: tuple[Name, ...]
    warnings: tuple[Name, ...]
    notes: tuple[Name, ...]
    advice: tuple[AdviceView, ...]
    commands: tuple[str, ...]
    seed: Number
    machine: tuple[Detail, ...]
    peaks: tuple[Detail, ...]


def report_view(result: Result) -> Report:
    """Numbers and sentences of every section. Pure: the same document gives the same view."""
    return Report(
        title=name(result.workload.name, 80),
        subtitle=_subtitle(result),
        verdict=verdict_view(result),
        trust=trust_checks(result),
        adopt=adopt_view(result),
        patch=patch_view(result),
        waterfall=waterfall_view(result),
        forest=forest_view(result),
        stages=stages_view(result.rounds),
        lanes=lanes_views(result.rounds, result.snippets),
        lanes_headline=pipeline_headline(result.rounds) if result.rounds else Phrase(),
        scaling=scaling_view(result),
        roofline=roofline_view(
            result.environment.peaks,
            result.rounds,
            (("before", "/baseline", result.baseline), ("after", "/best", result.best))
            if result.found
            else (("before", "/baseline", result.baseline),),
        ),
        learning=learning_view(result),
        tradeoffs=tradeoff_views(result),
        model_scaling=model_scaling_view(result),
        tuning=tuning_view(result),
        predictions=predictions_view(result),
        search=search_view(result),
        groups=trial_groups(result),
        account=account_phrase(result),
        not_measured=tuple(name(item) for item in result.not_measured),
        warnings=tuple(name(item, 600) for item in result.warnings),
        notes=tuple(name(item, 600) for item in result.notes),
        advice=advice_views(result.advice),
        commands=commands(result.reproduce, result.workload.spec),
        seed=number(result.reproduce.seed, units.count, "/reproduce/seed"),
        machine=machine_lines(result.environment),
        peaks=peak_lines(result.environment.peaks),
    )


def _subtitle(result: Result) -> Phrase:
    """The workload and the machine."""
    environment = result.environment
    device = say("{}", name(environment.device_name or environment.device, 60))
    torch = say(" · torch {}", name(environment.torch, 30)) if environment.torch else Phrase()
    when = say(" · {}", name(result.created[:16].replace("T", " "), 20))
    size = Phrase()
    if result.workload.parameters is not None:
        size = say(" · {} parameters", number(result.workload.parameters, units.count, "/workload/parameters"))
    return say("{} · ", name(result.workload.spec, 80)) + device + torch + size + when
