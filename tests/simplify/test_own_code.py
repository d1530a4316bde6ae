"""The user's own Python in a step: samples of a thread, told from the model, the loader, the optimizer and backward."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autoopt.records import Advice, Deeper, Plan, Round, WholeRun
from autoopt.simplify.costly import costly_lines
from autoopt.simplify.source import Samples
from autoopt.testing.strategies import sample_facts

STEP = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        see()
        return x.sum()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        see()
        return torch.ones(2)


def targets(x):
    for _ in range(2):
        see()
    return x


def train(net):
    for x in torch.utils.data.DataLoader(Data()):
        y = targets(x).requires_grad_()
        loss = net(y)
        see()
        for _ in range(3):
            see()
        backward()
"""


def sampled(folder: Path) -> Samples:
    """Samples of one run of ``train``: wherever its functions ask for one, and once within the backward pass."""
    samples, module, file = Samples(), ModuleType("step"), folder / "step.py"
    file.write_text(STEP)

    def see() -> None:
        samples.see(sys._getframe(1))

    vars(module)["see"] = see
    exec(compile(STEP, str(file), "exec"), vars(module))
    # a sample of the backward pass begins in a file of torch's
    inner = str(Path(torch.__file__).parent / "autograd" / "graph.py")
    exec(compile("def backward(): see()", inner, "exec"), vars(module))
    module.train(module.Net())
    return samples


def test_functions_outside_of_the_model_are_told_from_the_rest(tmp_path: Path) -> None:
    samples = sampled(tmp_path)
    found = {name: (line, round(share * samples.total)) for name, _, line, share in samples.functions()}
    lines = STEP.splitlines()
    assert found == {
        "targets": (lines.index("    for _ in range(2):") + 2, 2),
        "a loop in train": (lines.index("        for _ in range(3):") + 2, 3),
    }, "neither the model's forward, nor the dataset's samples, nor single lines of the training loop"


@pytest.mark.parametrize("own", [0.0, 0.03])
def test_what_functions_take_is_not_the_models(own: float) -> None:
    functions = (Deeper(name="targets", kind="line", seconds=own, file="train.py", line=7),) if own else ()
    whole = WholeRun(seconds=20.0, steps=100.0, parts=())
    half = {"resource": "device", "seconds": 0.05, "exposed_seconds": 0.05}
    stages = [{"name": name, **half} for name in ("forward", "backward")]
    round_ = Round.model_validate(
        {"index": 0, "plan": Plan(), "step_seconds": 0.1, "stages": stages, "own": functions, "whole_run": whole}
    )
    found: dict[str, Advice] = {one.title.split(":")[0]: one for one in costly_lines(round_, sample_facts())}
    assert found["The model"].seconds == pytest.approx(10.0 - 100 * own)
    assert ("targets" in found) is bool(own)
    if own:
        assert (found["targets"].file, found["targets"].line) == ("train.py", 7)
