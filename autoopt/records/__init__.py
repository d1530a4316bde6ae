"""The documents in which the phases meet: frozen, validated, JSON both ways.

Everything that result.json, plan.json and journal.jsonl hold is defined here. The report
imports this package alone; it needs the standard library. ``None`` means "not measured", never ``0``.
Times are seconds, sizes bytes, rates per second; a ratio is a speedup (above 1 is faster).
"""

from __future__ import annotations

from autoopt.records.base import (
    SCHEMA_VERSION,
    Change,
    Estimate,
    EstimateKind,
    Plan,
    PlanDocument,
    StopReason,
    Verdict,
)
from autoopt.records.headline import Headline
from autoopt.records.machine import Environment, Peaks
from autoopt.records.measured import (
    Ablation,
    Configuration,
    Curve,
    CurvePoint,
    Decided,
    Noise,
    Percentiles,
    Quality,
    Speedup,
    Trial,
)
from autoopt.records.pipeline import Contention, Deeper, Fed, Operator, Resource, Round, Simulation, Stage
from autoopt.records.record import JsonDict, Record, StrEnum, ValidationError
from autoopt.records.result import (
    Advice,
    BreakEven,
    Objective,
    Prediction,
    Profile,
    Profiled,
    Reproduce,
    Result,
    Snippets,
    Spent,
    Stop,
    WorkloadSummary,
)
from autoopt.records.script import PatchedChange, Place, ScriptPatch, Site, SiteKind, Sites
from autoopt.records.whole_run import Evaluated, RunPart, RunParts, WholeRun

__all__ = [
    "SCHEMA_VERSION",
    "Ablation",
    "Advice",
    "BreakEven",
    "Change",
    "Configuration",
    "Contention",
    "Curve",
    "CurvePoint",
    "Decided",
    "Deeper",
    "Environment",
    "Estimate",
    "EstimateKind",
    "Evaluated",
    "Fed",
    "Headline",
    "JsonDict",
    "Noise",
    "Objective",
    "Operator",
    "PatchedChange",
    "Peaks",
    "Percentiles",
    "Place",
    "Plan",
    "PlanDocument",
    "Prediction",
    "Profile",
    "Profiled",
    "Quality",
    "Record",
    "Reproduce",
    "Resource",
    "Result",
    "Round",
    "RunPart",
    "RunParts",
    "ScriptPatch",
    "Simulation",
    "Site",
    "SiteKind",
    "Sites",
    "Snippets",
    "Speedup",
    "Spent",
    "Stage",
    "Stop",
    "StopReason",
    "StrEnum",
    "Trial",
    "ValidationError",
    "Verdict",
    "WholeRun",
    "WorkloadSummary",
]
