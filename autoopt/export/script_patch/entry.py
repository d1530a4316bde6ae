"""The file that a script's command begins with."""

from __future__ import annotations

from pathlib import Path

from autoopt.records import Sites


def entry_of(sites: Sites) -> str | None:
    """The script itself, or the module that ``-m`` names, as the sites name files; None where it is not there."""
    words, cwd = sites.command, Path(sites.cwd)
    if "-m" in words[:-1]:
        base = Path(*words[words.index("-m") + 1].split("."))
        found = [path for path in (base.parent / f"{base.name}.py", base / "__main__.py") if (cwd / path).is_file()]
        if found:
            return found[0].as_posix()
    for word in words[1:]:
        path = Path(word)
        if word.endswith(".py") and (cwd / path).is_file():
            return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)
    return None
