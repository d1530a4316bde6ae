"""Scripts at their revisions, brought to the cache; git's own names of content are checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.whole_runs.cases import Case, CaseError
from benchmarks.whole_runs.data import cache

HERE = Path(__file__).resolve().parent
SCRATCH = cache() / "peers"
SITE = SCRATCH / "site"
"""Packages of the scripts' own that this environment lacks."""
MIRROR = "PEERS_MIRROR"
"""Names a folder with git directories, OWNER+NAME/repo, to read instead of GitHub."""
TORCHVISION = "torchvision==0.28.0"  # the one that is made for torch 2.13
OURS = ("", "")
"""A script in ``wrappers/``, where the repository cannot be had."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a script is from.

    Attributes:
        source: repository and revision.
        blob: git's name of the script's content at the revision.
        prepare: puts data where the script looks for them, given the root of its files.
        stand_in: what its data are here.
        beside: files and folders of the repository that it needs; none: all of the working directory.
    """

    source: tuple[str, str]
    blob: str
    prepare: Callable[[Path], None]
    stand_in: str
    beside: tuple[str, ...] = ()


def fetch(case: Case, origin: Origin) -> None:
    """Brings a script with its data, once.

    Raises:
        CaseError: the revision cannot be had, or the script in it is another one.
    """
    root = case.folder
    if not root.exists():
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        if origin.source == OURS:
            shutil.copy(HERE / "wrappers" / case.script, part)
        else:
            _unpack(case, origin, part)
        origin.prepare(part)
        part.rename(root)
    if str(SITE) in case.variables.get("PYTHONPATH", ""):
        _torchvision()


def _unpack(case: Case, origin: Origin, root: Path) -> None:
    name, revision = origin.source
    repository = _repository(name, revision)
    script = str(Path(case.below, case.script))
    for wanted, of in ((revision, f"{revision}^{{commit}}"), (origin.blob, f"{revision}:{script}")):
        found = _git(repository, "rev-parse", of).decode().strip()
        if found != wanted:
            raise CaseError(f"{name}: {of} is {found}, and should be {wanted}")
    paths = origin.beside or (case.below,)
    archive = _git(repository, "archive", revision, *(() if paths == (".",) else paths))
    subprocess.run(["tar", "-x", "-C", root], input=archive, check=True)
    if _git(repository, "hash-object", str(root / script)).decode().strip() != origin.blob:
        raise CaseError(f"{name}: {script} was changed on its way")


def _repository(name: str, revision: str) -> Path:
    mirror = os.environ.get(MIRROR)
    if mirror:
        return Path(mirror) / name.replace("/", "+") / "repo"
    repository = SCRATCH / "repositories" / name.replace("/", "+")
    if not repository.exists():
        repository.mkdir(parents=True)
        _git(repository, "init", "--bare", "--quiet")
    _git(repository, "fetch", "--quiet", "--depth", "1", f"https://github.com/{name}", revision)
    return repository


def _git(repository: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", repository, *words], capture_output=True, check=False)
    if done.returncode:
        raise CaseError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def _torchvision() -> None:
    """torchvision, with its compiled operators left out where they do not fit this torch: the scripts use none."""
    if not (SITE / "torchvision").exists():
        words = ["install", "--quiet", "--no-deps", "--target", str(SITE), TORCHVISION]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    environment = {**os.environ, "PYTHONPATH": str(SITE)}
    works = [sys.executable, "-c", "import torchvision"]
    if subprocess.run(works, env=environment, capture_output=True, check=False).returncode:
        (SITE / "torchvision" / "_meta_registrations.py").write_text("", encoding="utf-8")
        subprocess.run(works, env=environment, check=True)
