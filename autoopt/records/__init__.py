"""The documents in which the phases meet: frozen, validated, JSON both ways.

Everything that result.json, plan.json and journal.jsonl hold is defined here. The report
imports this package alone; it needs the standard library. ``None`` means "not measured", never ``0``.
Times are seconds, sizes bytes, rates per second; a ratio is a speedup (above 1 is faster).
"""

from __future__ import annotations

from autoopt.records.base import SCHEMA_VERSION as SCHEMA_VERSION
from autoopt.records.base import Change as Change
from autoopt.records.base import Estimate as Estimate
from autoopt.records.base import EstimateKind as EstimateKind
from autoopt.records.base import Plan as Plan
from autoopt.records.base import PlanDocument as PlanDocument
from autoopt.records.base import StopReason as StopReason
from autoopt.records.base import Verdict as Verdict
from autoopt.records.headline import Headline as Headline
from autoopt.records.machine import Environment as Environment
from autoopt.records.machine import Peaks as Peaks
from autoopt.records.measured import Ablation as Ablation
from autoopt.records.measured import Configuration as Configuration
from autoopt.records.measured import Curve as Curve
from autoopt.records.measured import CurvePoint as CurvePoint
from autoopt.records.measured import Decided as Decided
from autoopt.records.measured import Noise as Noise
from autoopt.records.measured import Percentiles as Percentiles
from autoopt.records.measured import Quality as Quality
from autoopt.records.measured import Speedup as Speedup
from autoopt.records.measured import Trial as Trial
from autoopt.records.pipeline import Contention as Contention
from autoopt.records.pipeline import Deeper as Deeper
from autoopt.records.pipeline import Fed as Fed
from autoopt.records.pipeline import Operator as Operator
from autoopt.records.pipeline import Resource as Resource
from autoopt.records.pipeline import Round as Round
from autoopt.records.pipeline import Simulation as Simulation
from autoopt.records.pipeline import Stage as Stage
from autoopt.records.record import JsonDict as JsonDict
from autoopt.records.record import Record as Record
from autoopt.records.record import StrEnum as StrEnum
from autoopt.records.record import ValidationError as ValidationError
from autoopt.records.result import Advice as Advice
from autoopt.records.result import BreakEven as BreakEven
from autoopt.records.result import Objective as Objective
from autoopt.records.result import Prediction as Prediction
from autoopt.records.result import Profile as Profile
from autoopt.records.result import Profiled as Profiled
from autoopt.records.result import Reproduce as Reproduce
from autoopt.records.result import Result as Result
from autoopt.records.result import Snippets as Snippets
from autoopt.records.result import Spent as Spent
from autoopt.records.result import Stop as Stop
from autoopt.records.result import WorkloadSummary as WorkloadSummary
from autoopt.records.script import PatchedChange as PatchedChange
from autoopt.records.script import Place as Place
from autoopt.records.script import ScriptPatch as ScriptPatch
from autoopt.records.script import Site as Site
from autoopt.records.script import SiteKind as SiteKind
from autoopt.records.script import Sites as Sites
from autoopt.records.whole_run import Evaluated as Evaluated
from autoopt.records.whole_run import RunPart as RunPart
from autoopt.records.whole_run import RunParts as RunParts
from autoopt.records.whole_run import WholeRun as WholeRun
