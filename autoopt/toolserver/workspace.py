"""Limits of what a client may name: nothing outside of the workspace is read, run or written on its behalf."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from autoopt.errors import UsageError
from autoopt.loading.importing import is_path, module_file, parse

_MODULE = "-m "


class Workspace:
    """A folder, and what in it can be named.

    Args:
        root: the folder; all tools work in it.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"there is no folder {root}", hint="autoopt mcp --workspace DIR")
        self.root = root.resolve()

    def path(self, name: str) -> Path:
        """A file or folder by its name, links followed.

        Raises:
            UsageError: it lies outside, or is named as no path should be.
        """
        if name.startswith(("-", "~")) or not name.isprintable():
            raise UsageError(f"{name!r} is no path in the workspace")
        found = (self.root / name).resolve()
        if not found.is_relative_to(self.root):
            raise UsageError(f"{name} lies outside of the workspace {self.root}")
        return found

    def existing(self, name: str) -> Path:
        """The same of what is there.

        Raises:
            UsageError: it is not.
        """
        found = self.path(name)
        if not found.exists():
            raise UsageError(f"there is no {name} in the workspace")
        return found

    def workload(self, target: str, words: Sequence[str]) -> list[str]:
        """The words of a command line that name a workload, to stand after all options.

        Args:
            target: a script (``train.py``), a module (``-m pkg.train``) or a function (``job.py:build``).
            words: the script's own.

        Raises:
            UsageError: it is none of these, or lies outside.
        """
        own = [self._word(word) for word in words]
        if target.startswith(_MODULE):
            module = target.removeprefix(_MODULE).strip()
            self._module(module)
            return ["--", sys.executable, "-m", module, *own]
        if ":" in target:
            where, _ = parse(target)
            if is_path(where):
                self.existing(where)
            else:
                self._module(where)
            return [target, *(["--", *own] if own else [])]
        if not target.endswith(".py"):
            raise UsageError(
                f"{target!r} is neither a script nor a function",
                hint="train.py, '-m pkg.train', or job.py:build; a script's own words go into words",
            )
        self.existing(target)
        return [target, "--", *own] if own else [target]

    def side(self, given: str) -> str:
        """A side of a comparison: ``.``, a file or run in the workspace, or a revision of its repository.

        Raises:
            UsageError: a command, or what lies outside.
        """
        if given.startswith("-") or " " in given or not given.isprintable():
            raise UsageError(f"{given!r} is no side: name a revision, a plan, a patch, a run, or . for the files now")
        if given.endswith((".json", ".diff", ".patch")) or (self.root / given).exists():
            return str(self.existing(given).relative_to(self.root))
        if given.endswith(".py") or ":" in given:
            return self.workload(given, [])[0]
        self.path(given)  # a revision's name leads nowhere else either
        return given

    def _module(self, name: str) -> None:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts) or module_file(name, [self.root]) is None:
            raise UsageError(f"there is no module {name} in the workspace")
        self.path("/".join(parts))

    def _word(self, word: str) -> str:
        """A word of the script's own, which may name files of the workspace alone."""
        value = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        named = value.startswith(("/", "~")) or ".." in Path(value).parts
        if named and (value.startswith("~") or not (self.root / value).resolve().is_relative_to(self.root)):
            raise UsageError(f"{word} names a file outside of the workspace {self.root}")
        return word
