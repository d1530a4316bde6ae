"""Protocol between parent and child: JSON documents on a private pipe.

The parent sends :class:`TrialSpec` once and then :class:`Call` documents; the child answers each
call with one :class:`Answer` or one :class:`Failure`.
Nothing on the pipe is pickled, and standard output is never the protocol.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import Plan
from autoopt.records.record import JsonDict, Record
from autoopt.records.script import Sites


class Launch(Record):
    """The processes that a launcher such as torchrun starts for a command, as it reported when it was asked once.

    ``ranks``: the environment variables of each process, by rank, that the launcher sets or changes. ``command``: of
    the launcher, as the user gave it.
    """

    ranks: tuple[dict[str, str], ...]
    command: tuple[str, ...]

    @property
    def size(self) -> int:
        """Processes that train together."""
        return len(self.ranks)

    def with_processes(self, count: int) -> Launch:
        """The same with the first so many processes."""
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count))
        ranks = [{**rank, **{k: v for k, v in sizes.items() if k in rank}} for rank in self.ranks[:count]]
        return self.model_copy(update={"ranks": tuple(ranks)})


class ScriptSpec(Record):
    """A command that trains, run as it is with autoopt listening.

    ``command``: its words, the interpreter first. ``sites``: what an earlier run of it has shown; None: this run is
    watched. ``metric``: pattern or key of the metric in what it prints or logs; ``found``: autoopt's finding.
    ``folders``: those that the trial sees through a view of its own, so that nothing in them is changed; ``shared``:
    those within them that it writes to for autoopt (the run directory). ``patched``: files to be read in place of those
    that are there, their text by path. ``python_path``: folders that its interpreter reads before all others.
    ``own_seeds``: its seeds stand; where they do not, each is mixed with the trial's (``autoopt.script.hook.seeds``).
    ``entry``: the module whose ``main`` the trial's process runs. ``path``: the
    interpreter's ``sys.path``, where the script may be run by a process that has torch imported already; None: it is
    run by an interpreter of its own. ``launch``: of a command that a launcher starts; each of its processes runs
    ``command``. ``terminal``: its standard input is a terminal, as the user's is: some scripts ask for its size.
    """

    command: tuple[str, ...]
    sites: Sites | None = None
    metric: str | None = None
    found: bool = False
    folders: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    patched: dict[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    own_seeds: bool = True
    entry: str = "autoopt.script.execute"
    path: tuple[str, ...] | None = None
    launch: Launch | None = None
    terminal: bool = False


class Rank(Record):
    """The place of a process in a group that trains together. ``folder``: where they meet, made by the parent.
    ``port``: a free one of this machine, for code that meets by itself."""

    rank: int
    size: int
    folder: str
    port: int = 29500


class TrialSpec(Record):
    """All that a trial's process needs to build and set up a workload.

    ``workload``: the import string. ``strategies``: import strings of custom strategies.
    ``memory_limit_bytes``: a limit that the device abstraction enforces (tests, simulated devices).
    ``search_path``: folders put in front of ``sys.path``; ``directory``: the working directory.
    ``processes``: that train together; ``rank``: which of them this is, in the spec of each.
    ``devices``: those that it sees, as ``CUDA_VISIBLE_DEVICES`` names them; None: those that its parent sees.
    ``target``: overrides the workload's target value. ``script``: of a command that is run as it is.
    ``disturbed``: so far away, over each weight, the weights begin (``autoopt.benchmark.seeding``).
    ``same_draws``: what datasets draw for a batch follows from the batch alone, whichever process reads it, so that two
    plans can be compared sample by sample. ``lean``: the script trains the same in little memory, slowly
    (``autoopt.script.applying.Lean``).
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
    flags: JsonDict = field(default_factory=dict)
    script: ScriptSpec | None = None
    processes: int = 1
    rank: Rank | None = None
    devices: str | None = None
    disturbed: float = 0.0
    same_draws: bool = False
    lean: bool = False


class Call(Record):
    """Runs one task: ``module:function``, called as ``function(live, **arguments) -> dict``."""

    task: str
    arguments: JsonDict = field(default_factory=dict)


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
