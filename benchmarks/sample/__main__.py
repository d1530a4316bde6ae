"""``python -m benchmarks.sample FOLDER``: writes the synthetic documents there."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

from benchmarks.sample import DOCUMENTS, profile

LARGE = 200_000


def write(folder: Path) -> None:
    """One JSON file for each document; a large one is packed."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: build().model_dump_json() for name, build in DOCUMENTS.items()}
    for name, text in {**texts, "profile": profile().model_dump_json()}.items():
        if len(text) > LARGE:
            (folder / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        else:
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
