"""The whole report as data: one view for each section, in reading order."""

from __future__ import annotations

from collections.abc import Sequence

from autoopt.records import Profile, Result
from autoopt_reports.view import units
from autoopt_reports.view.adopt import Adopt, patch_view
from autoopt_reports.view.closing import AdviceView, commands, machine_lines, peak_lines
from autoopt_reports.view.learning import learning_view
from autoopt_reports.view.pipeline import lanes_views, pipeline_headline
from autoopt_reports.view.scaling import ModelScalingView, ScalingView, TuningView
from autoopt_reports.view.search import SearchSection
from autoopt_reports.view.stages import StagesView, Timed, roofline_view
from autoopt_reports.view.steps import forest_view, waterfall_view
from autoopt_reports.view.text import Phrase, Placed, join, name, number, say
from autoopt_reports.view.tradeoff import tradeoff_views
from autoopt_reports.view.trials import account_phrase, predictions_view, trial_groups
from autoopt_reports.view.trust import trust_checks
from autoopt_reports.view.verdict import VerdictView


class Page:
    """The sections that the page of a run and that of a profile share. One that has nothing to show is None.

    Args:
        measured: (when, path, configuration) of what was timed.
    """

    def __init__(self, document: Result | Profile, rounds: Sequence[Placed], measured: Timed) -> None:
        snippets = document.snippets if isinstance(document, Result) else ()
        self.title = name(document.workload.name, 80)
        self.stages = StagesView(rounds) if rounds else None
        self.lanes = lanes_views(rounds, snippets)
        self.lanes_headline = pipeline_headline(rounds) if rounds else Phrase()
        self.roofline = roofline_view(document.environment.peaks, rounds, measured)
        self.warnings = tuple(name(item, 600) for item in document.warnings)
        self.advice = tuple(map(AdviceView, document.advice))
        self.seed = number(document.reproduce.seed, units.count, "/reproduce/seed")
        self.machine = machine_lines(document.environment)
        self.peaks = peak_lines(document.environment.peaks)


class Report(Page):
    """Numbers and sentences of every section. The same document gives the same."""

    def __init__(self, result: Result) -> None:
        sides = [("before", "/baseline", result.baseline), ("after", "/best", result.best)]
        rounds = [(f"/rounds/{place}", round_) for place, round_ in enumerate(result.rounds)]
        super().__init__(result, rounds, sides if result.found else sides[:1])
        self.subtitle = _subtitle(result)
        self.verdict = VerdictView(result)
        self.trust = trust_checks(result)
        self.adopt = Adopt(result)
        self.patch = patch_view(result)
        self.waterfall = waterfall_view(result)
        self.forest = forest_view(result)
        self.scaling = ScalingView(result.scaling) if result.scaling is not None else None
        self.learning = learning_view(result)
        self.tradeoffs = tradeoff_views(result)
        sizes, tuned = result.model_scaling, result.tuning
        self.model_scaling = ModelScalingView(sizes) if sizes is not None else None
        self.tuning = TuningView(tuned) if tuned is not None else None
        self.predictions = predictions_view(result)
        self.search = SearchSection(result)
        self.groups = trial_groups(result)
        self.account = account_phrase(result)
        self.not_measured = tuple(name(item) for item in result.not_measured)
        self.notes = tuple(name(item, 600) for item in result.notes)
        self.commands = commands(result.reproduce, result.workload.spec)


def _subtitle(result: Result) -> Phrase:
    environment, parameters = result.environment, result.workload.parameters
    parts = [name(result.workload.spec, 80), name(environment.device_name or environment.device, 60)]
    found = [say("{}", part) for part in parts]
    if environment.torch:
        found.append(say("torch {}", name(environment.torch, 30)))
    if parameters is not None:
        found.append(say("{} parameters", number(parameters, units.count, "/workload/parameters")))
    return join([*found, say("{}", name(result.created[:16].replace("T", " "), 20))], " · ")
