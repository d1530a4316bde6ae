"""Scripts at their revisions, brought to a folder that git ignores; git's own names of content are checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.workloads import OURS, Workload

HERE = Path(__file__).resolve().parent
SCRATCH = HERE.parents[1] / "autoopt-runs" / "peers"
"""Everything that is fetched, made and measured."""
SITE = SCRATCH / "site"
"""Packages of the scripts' own that this environment lacks."""
MIRROR = "PEERS_MIRROR"
"""Names a folder with git directories, OWNER+NAME/repo, to read instead of GitHub."""
TORCHVISION = "torchvision==0.28.0"  # the one that is made for torch 2.13


class UnfetchedError(RuntimeError):
    """A script could not be had as it is named."""


def folder_of(workload: Workload) -> Path:
    """The working directory of the untouched script."""
    return SCRATCH / "scripts" / workload.name / workload.folder


def fetch(workload: Workload) -> Path:
    """Brings a script with its data, once.

    Raises:
        UnfetchedError: the revision cannot be had, or the script in it is another one.
    """
    root = SCRATCH / "scripts" / workload.name
    if not (root / ".complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        if workload.source == OURS:
            shutil.copy(HERE / "wrappers" / workload.script, root)
        else:
            _unpack(workload, root)
        workload.prepare(root)
        (root / ".complete").touch()
    if "torchvision" in workload.needs:
        _torchvision()
    return root / workload.folder


def _unpack(workload: Workload, root: Path) -> None:
    name, revision = workload.source
    repository = _repository(name, revision)
    script = str(Path(workload.folder, workload.script))
    for wanted, of in ((revision, f"{revision}^{{commit}}"), (workload.blob, f"{revision}:{script}")):
        found = _git(repository, "rev-parse", of).decode().strip()
        if found != wanted:
            raise UnfetchedError(f"{name}: {of} is {found}, and should be {wanted}")
    paths = workload.beside or (workload.folder,)
    archive = _git(repository, "archive", revision, *(() if paths == (".",) else paths))
    subprocess.run(["tar", "-x", "-C", root], input=archive, check=True)
    if _git(repository, "hash-object", str(root / script)).decode().strip() != workload.blob:
        raise UnfetchedError(f"{name}: {script} was changed on its way")


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
        raise UnfetchedError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
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
