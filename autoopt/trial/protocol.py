"""Protocol between parent and child: JSON documents on a private pipe.

The parent sends :class:`TrialSpec` once and then :class:`Call` documents; the child answers each
call with any number of :class:`Progress`, then one :class:`Answer` or one :class:`Failure`.
Nothing on the pipe is pickled, and standard output is never the protocol.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoopt.records import JsonDict, Plan, Record


class TrialSpec(Record):
    """All that a trial's process needs to build and set up a workload.

    ``workload``: the import string. ``strategies``: import strings of custom strategies.
    ``memory_limit_bytes``: a limit that the device abstraction enforces (tests, simulated devices).
    ``search_path``: folders put in front of ``sys.path``; ``directory``: the working directory.
    ``target``: overrides the workload's target value.
    """

    workload: str
    plan: Plan = Plan()
    strategies: tuple[str, ...] = ()
    device: str = "cpu"
    seed: int = 0
    directory: str = "."
    search_path: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    target: float | None = None
    flags: JsonDict = Field(default_factory=dict)


class Call(Record):
    """Runs one task: ``module:function``, called as ``function(live, **arguments) -> dict``."""

    task: str
    arguments: JsonDict = Field(default_factory=dict)


class Progress(Record):
    kind: Literal["progress"] = "progress"
    data: JsonDict


class Answer(Record):
    kind: Literal["answer"] = "answer"
    data: JsonDict


class Failure(Record):
    """``failure``: one of ``TrialFailed.KINDS``; ``where``: ``import``, ``build``, ``setup``, ``step`` ...

    ``exit_code``: that of the error of autoopt's own tree that it was (3: the user's code cannot be built).
    """

    kind: Literal["failure"] = "failure"
    failure: str
    message: str
    where: str = ""
    hint: str = ""
    detail: str = ""
    exit_code: int | None = None
