"""Synthetic documents, as ``tests/golden`` holds them. Nothing in them was ever measured, and each says so in its name.

``python tests/sample.py`` writes them again as the records have them, such as after a field was added.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from autoopt.records import Profile, Result

GOLDEN = Path(__file__).parent / "golden"


def file_of(name: str) -> Path:
    """A long document is packed."""
    packed = GOLDEN / f"{name}.json.gz"
    return packed if packed.exists() else GOLDEN / f"{name}.json"


@cache
def text(name: str) -> str:
    """The text of a document."""
    held = file_of(name).read_bytes()
    return (gzip.decompress(held) if file_of(name).suffix == ".gz" else held).decode().rstrip("\n")


def result(name: str) -> Result:
    """The result of this name."""
    return Result.model_validate_json(text(name))


def profile() -> Profile:
    return Profile.model_validate_json(text("profile"))


NAMES = ("win", "no_gain", "out_of_memory", "interrupted", "thousand", "hostile", "sizes")
DOCUMENTS: dict[str, Callable[[], Result]] = {name: partial(result, name) for name in NAMES}
win, no_gain, interrupted, sizes = (DOCUMENTS[name] for name in ("win", "no_gain", "interrupted", "sizes"))


def many(count: int) -> Result:
    """A search of so many trials, a thousand at most."""
    found = result("thousand")
    workload = found.workload.model_copy(update={"name": f"synthetic, {count} trials"})
    return found.model_copy(update={"workload": workload, "trials": found.trials[:count]})


if __name__ == "__main__":
    for name, build in {**DOCUMENTS, "profile": profile}.items():
        written = build().model_dump_json()
        packed = file_of(name).suffix == ".gz"
        file_of(name).write_bytes(gzip.compress(written.encode(), 9, mtime=0) if packed else f"{written}\n".encode())
