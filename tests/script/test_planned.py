"""How many steps a script plans, where batches are added up and their number is no multiple of a step's."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autoopt.script.process import planned_steps, steps_per_epoch

STEPS = """\
def train(loader, accelerator, step, k=4):
    taken = 0
    for epoch in range(3):
        for i, batch in enumerate(loader):
LINES
"""


def compiled(folder: Path, *lines: str) -> CodeType:
    """A function that trains for three epochs, with these lines as what it does with a batch."""
    file = folder / "train.py"
    file.write_text(STEPS.replace("LINES", "\n".join(f"            {line}" for line in lines)))
    return compile(file.read_text(), str(file), "exec")


@pytest.mark.parametrize(
    ("lines", "planned", "epoch"),
    [
        (("if (i + 1) % k == 0 or i + 1 == len(loader):", "    step()"), 9, 3),
        (("if (i + 1) % k and i != len(loader) - 1:", "    continue", "step()"), 9, 3),
        (("with accelerator.accumulate(loader):", "    step()"), 9, 3),
        (("if (i + 1) % k == 0:", "    step()"), 6, 2),
        (("if (i + 1) % k != 0:", "    continue", "step()"), 6, 2),
        (("taken += 1", "if taken % k == 0:", "    step()"), 7, 2),
        (("if i % 100 == 99:", "    print(i)", "step()"), 7, 2),
    ],
)
def test_a_last_group_that_is_not_full_counts_as_the_script_treats_it(
    tmp_path: Path, lines: tuple[str, ...], planned: int, epoch: int
) -> None:
    script: dict[str, object] = {}
    exec(compiled(tmp_path, *lines), script)
    loader = DataLoader(TensorDataset(torch.zeros(10, 1)), batch_size=1)
    told: list[tuple[int | None, int]] = []

    class Accelerator:
        def accumulate(self, model: object) -> Accelerator:
            return self

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def step() -> None:
        told.append((planned_steps(4), steps_per_epoch(len(loader), 4)))

    script["train"](loader, Accelerator(), step)  # type: ignore[operator]
    assert set(told) == {(planned, epoch)}
