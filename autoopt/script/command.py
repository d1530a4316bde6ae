"""A script's command as the user writes it, and as it is run; torch is not imported here."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoopt.errors import EnvironmentLacks, UsageError, WorkloadError
from autoopt.script.launched import asked, is_launcher, launcher_of
from autoopt.trial.protocol import ScriptSpec

_DEAF = {"-I", "-E", "-S", "-Im", "-Em", "-Sm"}
_LAUNCHERS = ("deepspeed", "mpirun", "srun")
_EXAMPLE = "such as: autoopt optimize train.py --budget 1h -- --epochs 10"


def spec_of(target: str | None, words: Sequence[str]) -> str:
    """The workload of a command line: an import string, or a command as one text.

    Args:
        target: what stands first: an import string, a script, or the first word of a whole command.
        words: what follows it.

    Raises:
        UsageError: words behind an import string, or nothing at all.
    """
    if not target:
        raise UsageError("nothing to train was named", hint=f"a script or MODULE:ATTR, {_EXAMPLE}")
    if not words and not _is_script(target) and ":" in target:
        return target
    if words and ":" in target and not _is_script(target):
        raise UsageError(
            f"{target} is a function that describes the run: it takes no words of its own, got {shlex.join(words)}",
            hint=f"a script takes words behind --, {_EXAMPLE}",
        )
    if not words and not _is_script(target):
        return target
    spec = shlex.join([target, *words])
    if command_of(spec) is None:
        if target.partition("=")[0].isidentifier() and "=" in target:
            hint = f"variables are set before it: {target} autoopt optimize -- {shlex.join(words)}"
        else:
            hint = f"name the Python script that it runs, {_EXAMPLE}"
        raise UsageError(f"autoopt listens in Python, torchrun and accelerate launch, not in {target}", hint=hint)
    return spec


def command_of(spec: str) -> tuple[str, ...] | None:
    """The words of a command, the interpreter first; None where the spec is an import string.

    Of torchrun and accelerate the launcher's own words (``autoopt.script.launched`` asks it what it starts).

    Raises:
        UsageError: another launcher of several processes, or an interpreter that is told not to listen.
    """
    try:
        words = shlex.split(spec)
    except ValueError:
        return None
    if not words:
        return None
    first = os.path.basename(words[0])
    if _is_script(words[0]):
        return (sys.executable, *words)
    if is_launcher(words):
        return launcher_of(words)
    if first.startswith("python") and len(words) > 1:
        return _interpreted(words)
    if first in _LAUNCHERS:
        raise UsageError(
            f"{first} starts training processes of its own, in a way that cannot be asked for",
            hint="let torchrun or accelerate launch start the script, such as: "
            "autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py",
        )
    return None


def check_script(command: Sequence[str], folder: Path | None = None) -> None:
    """Checks a command as far as that goes without running it.

    Args:
        folder: where it runs; the present one where None.

    Raises:
        WorkloadError: there is no such script.
        EnvironmentLacks: the interpreter cannot be run, or does not have autoopt.
    """
    script = next((word for word in command[1:] if not word.startswith("-")), None)
    named = script is not None and _is_script(script) and "-m" not in command[: command.index(script)]
    here = folder or Path.cwd()
    if script is not None and named and not (here / script).is_file():
        raise WorkloadError(f"there is no script {script}", hint=f"looked for in {here}")
    if command[0] != sys.executable and not is_launcher(command) and not _has_autoopt(command[0]):
        raise EnvironmentLacks(
            f"{command[0]} cannot import autoopt, which must listen in the script's process",
            hint=f"{command[0]} -m pip install torch-autoopt",
        )


def _has_autoopt(python: str) -> bool:
    words = [python, "-c", "import autoopt"]
    try:
        return subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def script_file(command: Sequence[str]) -> tuple[Path | None, Path | None]:
    """The file that a command runs, and the folder that its imports are looked for in; None where neither is known.

    Of a launcher's command that of the script that it starts. Nothing is imported to find a module.
    """
    for word, after in pairwise((*command[1:], "")):
        if _is_script(word) and Path(word).is_file():
            return Path(word), None
        if word in ("-m", "--module") and not is_launcher(("python", word, after)):
            stem = Path(*after.split("."))
            found = (path for path in (stem.with_suffix(".py"), stem / "__main__.py") if path.is_file())
            return next(found, None), Path()
    return None, None


def folders_of(command: Sequence[str], folder: Path | None = None) -> tuple[str, ...]:
    """The folders that must stay as they are: the one it runs in (the present one where None), and the script's."""
    here = folder or Path.cwd()
    scripts = [word for word in command[1:] if _is_script(word)]
    return tuple(dict.fromkeys([str(here), *(str((here / word).resolve().parent) for word in scripts[:1])]))


def script_spec(command: Sequence[str], folder: Path | None = None, **more: Any) -> ScriptSpec:
    """A command as its trials run it. A launcher is asked first which processes it starts.

    Args:
        folder: where it runs; the present one where None.
        more: fields of the spec.

    Raises:
        WorkloadError: the launcher starts no process, or not as they are wanted.
        EnvironmentLacks: their interpreter does not have autoopt.
    """
    more = {"folders": folders_of(command, folder), **more}
    if not is_launcher(command):
        return ScriptSpec(command=tuple(command), **more)
    words, launch = asked(command, folder or Path.cwd())
    check_script(words, folder)
    return ScriptSpec(command=words, launch=launch, **more)


@contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Refuses a second measurement of the same folder: both would compete for the same cores and device.

    Raises:
        EnvironmentLacks: another one is under way.
    """
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


def _interpreted(words: list[str]) -> tuple[str, ...]:
    options = []
    for word in words[1:]:
        if not word.startswith("-") or word in ("-m", "-c"):
            break
        options.append(word)
    deaf = next((option for option in options if option in _DEAF), None)
    if deaf:
        raise UsageError(
            f"{words[0]} {deaf} ignores PYTHONPATH, by which autoopt listens", hint=f"leave {deaf} out while measuring"
        )
    found = shutil.which(words[0])
    if found is None:
        raise UsageError(f"there is no interpreter {words[0]!r}", hint=_EXAMPLE)
    same = os.path.basename(words[0]) in ("python", "python3") and os.sep not in words[0]
    return (sys.executable if same and _same(found) else found, *words[1:])


def _same(found: str) -> bool:
    return os.path.realpath(found) == os.path.realpath(sys.executable) and os.path.dirname(found) == os.path.dirname(
        sys.executable
    )


def _is_script(word: str) -> bool:
    return word.endswith(".py") and ":" not in word


def said(spec: str) -> str:
    """A spec as a command line has it: the words of a script behind ``--``."""
    if command_of(spec) is None:
        return spec
    first, _, rest = spec.partition(" ")
    if not _is_script(first):
        return f"-- {spec}"
    return f"{first} -- {rest}" if rest else first
