"""A real before and after in CI form: the example script, and a revision of it that decodes its images once."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoopt.comparing.ask import Ask
from autoopt.comparing.compare import compare_sides
from autoopt.options import Options
from autoopt.records.comparing import Requirement
from autoopt.script.command import parse
from autoopt_reports import compared
from benchmarks.asks import git
from benchmarks.documents import ROOT

EXAMPLE = ROOT / "examples" / "train_photos.py"
COMMAND = parse("train_photos.py --epochs 40")
KEPT = (
    (
        "        self.augment = augment\n",
        '        self.images = [np.array(Image.open(f).convert("RGB")) for f in self.files]\n',
    ),
    ('image = Image.open(self.files[index]).convert("RGB")', "image = Image.fromarray(self.images[index])"),
)
"""The second revision's change: a line below the first, and the second in place of its own."""


def measure(seconds: float) -> tuple[dict[str, Any], str]:
    """The document of the comparison, with the diff, and the text of the comment."""
    with tempfile.TemporaryDirectory(prefix="autoopt-revisions-") as above, contextlib.chdir(above):
        shutil.copy(EXAMPLE, ".")
        git(".", "init", "-q", "-b", "main")
        git(".", "add", ".")
        git(".", "commit", "-qm", "the example as it is")
        git(".", "checkout", "-q", "-b", "decoded-once")
        Path(EXAMPLE.name).write_text(decoded_once(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
        git(".", "commit", "-qam", "images are decoded once")
        ask = Ask("main", "decoded-once", Requirement(kind="faster"))
        options = Options(budget_seconds=seconds, device="cpu")
        found = compare_sides(ask, COMMAND, options, say=lambda text: print(text, file=sys.stderr))
        asked = replace(ask, ledger=Path("asks.jsonl"))  # without which the command does not take a requirement
        found = found.model_copy(update={"command": asked.command(COMMAND)})
        diff = git(".", "diff", "main", "decoded-once")
    return {**found.model_dump(), "diff": diff}, compared.markdown(found)


def decoded_once(text: str) -> str:
    """The example's text as the second revision has it."""
    (below, line), (old, new) = KEPT
    assert text.count(below) == text.count(old) == 1
    return text.replace(below, below + line).replace(old, new)
