"""What a user wants trained: a function that describes the run, or a script's command. torch is not imported here."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from autoopt.errors import EnvironmentLacks, UsageError, WorkloadError
from autoopt.loading.importing import check_spec
from autoopt.records.protocol import Launch, ScriptSpec
from autoopt.script import hook

PATH_WAS_UNSET = "AUTOOPT_SCRIPT_PATH_WAS_UNSET"
ASKED = "AUTOOPT_LAUNCH_ASKED"
PASSED_ON = "AUTOOPT_PASSED_ON"
"""Set for a launcher: it is not listened to, the processes that it starts are."""

ASK_SECONDS = 120.0
_COMMANDS = ("torchrun", "accelerate", "accelerate-launch")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SEVERAL_MACHINES = re.compile(r"--(?:nnodes|num[_-]machines)(?:=|$)")
_OF_THE_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_GONE = ("TORCHELASTIC_ERROR_FILE", "TMPDIR", "PYTHONPATH", "_", "SHLVL", "PWD", "OLDPWD")
"""Variables that a launcher sets and that hold for its own run alone."""
_HINT = "such as: autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py"
_DEAF = {"-I", "-E", "-S", "-Im", "-Em", "-Sm"}
_NEEDED = """
import sys
if sys.version_info < (3, 10):
    sys.exit("is Python %d.%d; autoopt needs 3.10 or later" % sys.version_info[:2])
from importlib import metadata, util
lacks = [name for name in ("torch", "numpy") if util.find_spec(name) is None]
if lacks:
    sys.exit("has no " + " and no ".join(lacks))
for found in metadata.distributions(name="torch"):
    if tuple(map(int, found.version.split(".")[:2])) < (2, 6):
        sys.exit("has torch " + found.version + "; autoopt needs 2.6 or later")
    break
"""
_LAUNCHERS = ("deepspeed", "mpirun", "srun")
_EXAMPLE = "such as: autoopt optimize train.py --budget 1h -- --epochs 10"


def hooked(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that put ``script.hook`` on the path of the next interpreter."""
    before = environment.get("PYTHONPATH")
    unset = {PATH_WAS_UNSET: "1"} if before is None else {}
    return {"PYTHONPATH": os.pathsep.join([*hook.__path__, *filter(None, [before])]), **unset}


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command is one of a launcher that starts training processes."""
    first = os.path.basename(words[0]) if words else ""
    if first in _COMMANDS:
        return first != "accelerate" or "launch" in words[1:2]
    return first.startswith("python") and any(word == "-m" and after in _MODULES for word, after in pairwise(words))


def launcher_of(words: Sequence[str]) -> tuple[str, ...]:
    """A launcher's command with the program found.

    Raises:
        UsageError: there is none, or it is asked to start processes on several machines.
    """
    found = shutil.which(words[0])
    if found is None:
        raise UsageError(f"there is no {words[0]} on the path", hint=_HINT)
    for word, after in zip(words, (*words[1:], ""), strict=True):
        if word.endswith(".py"):
            break  # what follows is the script's own
        given = _SEVERAL_MACHINES.match(word)
        count = word.partition("=")[2] or after
        if given and count not in ("1", "1:1"):
            raise UsageError(
                f"{given.group().rstrip('=')} {count}: a training on several machines cannot be frozen and compared",
                hint="measure it on one machine: what is found there holds for each",
            )
    return (found, *words[1:])


def asked(command: Sequence[str], folder: Path) -> tuple[tuple[str, ...], Launch]:
    """Starts a launcher once, so that it reports the processes that it would start; they end before their first line.

    Args:
        command: the launcher's, as ``launcher_of`` gave it.

    Returns:
        the command that each of the processes runs, the interpreter first, and what distinguishes them.

    Raises:
        WorkloadError: it starts none, not all of them here, or different ones.
    """
    with tempfile.TemporaryDirectory(prefix="autoopt-") as place:
        log = Path(place, "log")
        how = _run(command, folder, Path(place), log)
        reported = [json.loads(file.read_text()) for file in sorted(Path(place).glob("*.json"))]
        said = log.read_text(errors="replace")[-4000:].rstrip()
    if not reported:
        raise WorkloadError(
            f"{os.path.basename(command[0])} started no Python process ({how})", hint=_HINT, detail=said
        )
    reported.sort(key=lambda process: int(process["variables"].get("RANK", "0")))
    words, *others = [tuple(process["words"]) for process in reported]
    size = int(reported[0]["variables"].get("WORLD_SIZE", "1"))
    if size != len(reported):
        raise WorkloadError(f"of {size} processes {len(reported)} were started on this machine ({how})", detail=said)
    if any(other != words for other in others):
        raise WorkloadError("the processes run different commands, so that their steps cannot be compared")
    return words, Launch(ranks=tuple(_variables(process) for process in reported), command=tuple(command))


def _run(command: Sequence[str], folder: Path, place: Path, log: Path) -> str:
    """Runs the launcher to its end, which is reported."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_THE_PLACE}
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**own, **hooked(own), "TMPDIR": str(place), ASKED: str(place)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return f"exit code {process.wait(ASK_SECONDS)}"
        except subprocess.TimeoutExpired:
            return f"stopped after {ASK_SECONDS:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _variables(process: dict[str, Any]) -> dict[str, str]:
    """The variables that the launcher has set for a process, or changed; the first rank holds the store itself."""
    given: dict[str, str] = process["variables"]
    found = {
        name: value
        for name, value in given.items()
        if os.environ.get(name) != value and name not in _GONE and not name.startswith("AUTOOPT_")
    }
    if process["unbuffered"]:
        found["PYTHONUNBUFFERED"] = "1"
    if "TORCHELASTIC_USE_AGENT_STORE" in found:
        found["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    return found


@dataclass(frozen=True)
class Build:
    """A function that describes the run.

    Attributes:
        spec: its import string.
    """

    spec: str

    def check(self, folder: Path | None = None) -> None:
        """Checks the import string as far as that goes without importing anything.

        Raises:
            WorkloadError: malformed, or there is no such file or module.
        """
        check_spec(self.spec)

    def asked(self, options: Sequence[str] = ()) -> str:
        """Words of a command line that ask for it, with options between them."""
        return " ".join([self.spec, *options])

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Builds may be measured next to each other: each is imported into processes of its own."""
        return contextlib.nullcontext()

    def in_trials(self, folder: Path | None = None, **more: Any) -> None:
        """Trials build it by its import string."""


@dataclass(frozen=True)
class Script:
    """A script that trains, as the user runs it.

    Attributes:
        spec: its command as one text.
        words: of the command, the interpreter first; of torchrun and accelerate the launcher's own.
    """

    spec: str
    words: tuple[str, ...]

    def check(self, folder: Path | None = None) -> None:
        """Checks the command as far as that goes without running it.

        Args:
            folder: where it runs; the present one where None.

        Raises:
            WorkloadError: there is no such script.
            EnvironmentLacks: the interpreter cannot be run, is too old, or has no torch or no numpy.
        """
        words, here = self.words, folder or Path.cwd()
        script = next((word for word in words[1:] if not word.startswith("-")), None)
        named = script is not None and _is_script(script) and "-m" not in words[: words.index(script)]
        if script is not None and named and not (here / script).is_file():
            raise WorkloadError(f"there is no script {script}", hint=f"looked for in {here}")
        if words[0] == sys.executable or is_launcher(words):
            return
        hint, asks = "name the interpreter that the script trains with", [words[0], "-c", _NEEDED]
        try:
            reported = subprocess.run(asks, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise EnvironmentLacks(f"{words[0]} cannot be run: {error.strerror}", hint=hint) from None
        said = reported.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "is no Python interpreter"
        if reported.returncode:
            raise EnvironmentLacks(f"{words[0]} {said}", hint=hint)

    def asked(self, options: Sequence[str] = ()) -> str:
        """Words of a command line that ask for it: the script's own behind ``--``, options before them."""
        first, _, rest = self.spec.partition(" ")
        words = [first, *options] if _is_script(first) else [*options, "--", self.spec]
        return " ".join([*words, "--", rest] if _is_script(first) and rest else words)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuses a second measurement in the same folder: both would compete for the same cores and device.

        Raises:
            EnvironmentLacks: another one is under way.
        """
        folder = os.getcwd()
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise EnvironmentLacks(
                    f"another autoopt measures scripts in {folder}", hint="wait until it has ended, or stop it"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def in_trials(self, folder: Path | None = None, **more: Any) -> ScriptSpec:
        """The command as its trials run it. A launcher is asked first which processes it starts.

        Args:
            folder: where it runs; the present one where None.

        Raises:
            WorkloadError: the launcher starts no process, or not as they are wanted.
            EnvironmentLacks: their interpreter is not one that scripts can be listened to in.
        """
        here = folder or Path.cwd()
        scripts = [word for word in self.words[1:] if _is_script(word)]
        # these must stay as they are: the folder that it runs in, and the script's
        kept = dict.fromkeys([str(here), *(str((here / word).resolve().parent) for word in scripts[:1])])
        more = {"folders": tuple(kept), "terminal": os.isatty(0), **more}
        if not is_launcher(self.words):
            return ScriptSpec(command=self.words, **more)
        words, launch = asked(self.words, here)
        Script(self.spec, words).check(folder)
        return ScriptSpec(command=words, launch=launch, **more)

    def files(self, folder: Path | None = None) -> tuple[Path | None, Path | None, list[Path]]:
        """The file that is run, the folder that its imports are looked for in, other files that are named.

        The first two are None where they are not known. Of a launcher's command they are of the script that it starts.
        Nothing is imported to find a module.

        Args:
            folder: where it runs; the present one where None.
        """
        here = folder or Path()
        file: Path | None = None
        root: Path | None = None
        for word, after in pairwise((*self.words[1:], "")):
            if _is_script(word) and (here / word).is_file():
                file = here / word
                break
            if word in ("-m", "--module") and not is_launcher(("python", word, after)):
                stem, root = here.joinpath(*after.split(".")), here
                found = (path for path in (stem.with_suffix(".py"), stem / "__main__.py") if path.is_file())
                file = next(found, None)
                break
        named = (here / word.rpartition("=")[2] for word in self.words[1:])
        return file, root, [path for path in dict.fromkeys(named) if path.is_file() and path != file]


def read(target: str | None, words: Sequence[str]) -> Script | Build:
    """The workload of a command line.

    Args:
        target: what stands first: an import string, a script, or the first word of a whole command.
        words: what follows it.

    Raises:
        UsageError: words behind an import string, no command that autoopt can listen to, or nothing at all.
    """
    if not target:
        raise UsageError("nothing to train was named", hint=f"a script or MODULE:ATTR, {_EXAMPLE}")
    if words and ":" in target:
        raise UsageError(
            f"{target} is a function that describes the run: it takes no words of its own, got {shlex.join(words)}",
            hint=f"a script takes words behind --, {_EXAMPLE}",
        )
    if not words and not _is_script(target):
        return Build(target)
    found = parse(shlex.join([target, *words]))
    if isinstance(found, Build):
        hint = f"name the Python script that it runs, {_EXAMPLE}"
        if target.partition("=")[0].isidentifier() and "=" in target:
            hint = f"variables are set before it: {target} autoopt optimize -- {shlex.join(words)}"
        raise UsageError(f"autoopt listens in Python, torchrun and accelerate launch, not in {target}", hint=hint)
    return found


def parse(spec: str) -> Script | Build:
    """The workload of one text, as documents keep it.

    Raises:
        UsageError: another launcher of several processes, or an interpreter that is asked not to listen.
    """
    try:
        words = shlex.split(spec)
    except ValueError:
        return Build(spec)
    first = os.path.basename(words[0]) if words else ""
    if words and _is_script(words[0]):
        return Script(spec, (sys.executable, *words))
    if is_launcher(words):
        return Script(spec, launcher_of(words))
    if first.startswith("python") and len(words) > 1:
        options = takewhile(lambda word: word.startswith("-") and word not in ("-m", "-c"), words[1:])
        deaf = next((option for option in options if option in _DEAF), None)
        if deaf:
            hint = f"leave {deaf} out while measuring"
            raise UsageError(f"{words[0]} {deaf} ignores PYTHONPATH, by which autoopt listens", hint=hint)
        found, own = shutil.which(words[0]), sys.executable
        if found is None:
            raise UsageError(f"there is no interpreter {words[0]!r}", hint=_EXAMPLE)
        same = os.path.realpath(found) == os.path.realpath(own) and os.path.dirname(found) == os.path.dirname(own)
        return Script(spec, (own if same and words[0] in ("python", "python3") else found, *words[1:]))
    if first in _LAUNCHERS:
        raise UsageError(
            f"{first} starts training processes of its own, in a way that cannot be asked for",
            hint=f"let torchrun or accelerate launch start the script, {_HINT}",
        )
    return Build(spec)


def _is_script(word: str) -> bool:
    return word.endswith(".py") and ":" not in word
