"""Where a model gets its name: several of them, one from a model zoo, one that is made where it is handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.export.script_patch.source import entry_of
from autoopt.records import Change, Place, Sites
from scripted import BF16, COMPILE, FP16, changed_lines, patched, seen

LAYOUT = Change(strategy="channels_last", setting={})
FUSED = Change(strategy="fused_optimizer", setting={"implementation": "fused"})

GAN = """\
import torch
from torch import nn

netG = nn.Linear(4, 8)
netD = nn.Linear(8, 1)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
for real in torch.randn(9, 2, 8):
    netD.zero_grad()
    errD_real = criterion(netD(real), torch.ones(2, 1))
    errD_real.backward()
    fake = netG(torch.randn(2, 4))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(2, 1))
    errD_fake.backward()
    optD.step()
    netG.zero_grad()
    output = netD(fake)
    errG = criterion(output, torch.ones(2, 1))
    errG.backward()
    optG.step()
"""


def gan(folder: Path, text: str = GAN, fake: str = "errD_fake.backward(") -> Sites:
    return seen(
        folder,
        text,
        ("model", "Linear", "nn.Linear(8, 1)", {"used": ["netD("]}),
        ("model", "Linear", "nn.Linear(4, 8)", {"used": ["netG("]}),
        ("optimizer", "Adam", "torch.optim.Adam(netD", {}),
        ("optimizer", "Adam", "torch.optim.Adam(netG", {}),
        ("loss", "backward", "errD_real.backward(", {}),
        ("loss", "backward", fake, {}),
        ("loss", "backward", "errG.backward(", {}),
        ("step", "step", "optD.step(", {}),
        ("step", "step", "optG.step(", {}),
    )


def test_each_model_and_each_optimizer_of_a_step_gets_the_change(tmp_path: Path) -> None:
    after, patch = patched(tmp_path, GAN, LAYOUT, FUSED, sites=gan(tmp_path))
    assert {change.how for change in patch.changes} == {"patched"}
    assert "netG = nn.Linear(4, 8)\nnetG.to(memory_format=torch.channels_last)\n" in after
    assert "netD = nn.Linear(8, 1)\nnetD.to(memory_format=torch.channels_last)\n" in after
    assert after.count("lr=2e-4, fused=True)") == 2


def test_autocast_stands_around_each_loss_with_the_calls_that_lead_to_it(tmp_path: Path) -> None:
    after, patch = patched(tmp_path, GAN, BF16, sites=gan(tmp_path))
    assert patch.changes[0].how == "patched", patch.changes[0].reason
    header = '    with torch.autocast("cpu", dtype=torch.bfloat16):\n        '
    assert after.count(header) == 3
    assert header + "errD_real = criterion(" in after
    assert header + "fake = netG(torch.randn(2, 4))\n        errD_fake = criterion(" in after
    assert header + "output = netD(fake)\n        errG = criterion(" in after
    _, patch = patched(tmp_path, GAN, FP16, sites=gan(tmp_path))
    assert "3 lines compute gradients" in patch.changes[0].reason


def test_a_picture_after_the_last_backward_pass_needs_no_autocast(tmp_path: Path) -> None:
    text = GAN + "    if errG > 9:\n        shown = netG(torch.ones(2, 4))\n"
    sites = gan(tmp_path, text)
    assert [len(site.used) for site in sites.of("model")] == [3, 2]
    after, patch = patched(tmp_path, text, BF16, sites=sites)
    assert patch.changes[0].how == "patched", patch.changes[0].reason
    assert after.endswith("    if errG > 9:\n        shown = netG(torch.ones(2, 4))\n")


def test_a_loss_without_a_name_gets_one_under_autocast(tmp_path: Path) -> None:
    text = GAN.replace(
        "    errD_fake = criterion(netD(fake.detach()), torch.zeros(2, 1))\n    errD_fake.backward()\n",
        "    # the false ones\n    criterion(netD(fake.detach()), torch.zeros(2, 1)).backward()\n",
    )
    sites = gan(tmp_path, text, "criterion(netD(fake.detach()), torch.zeros(2, 1)).backward(")
    after, patch = patched(tmp_path, text, BF16, sites=sites)
    assert patch.changes[0].how == "patched", patch.changes[0].reason
    header = '    with torch.autocast("cpu", dtype=torch.bfloat16):\n        '
    assert header + "fake = netG(torch.randn(2, 4))\n    # the false ones\n" + header + "loss = criterion(" in after
    assert "torch.zeros(2, 1))\n    loss.backward()\n" in after
    taken = text.replace("real in", "real, loss, step_loss, batch_loss in")
    sites = sites.model_copy(update={"cwd": str(tmp_path)})
    (tmp_path / "train.py").write_text(taken)
    _, patch = patched(tmp_path, taken, BF16, sites=sites)
    assert "share a statement" in patch.changes[0].reason


def test_a_forward_pass_that_no_loss_of_its_block_reaches_keeps_autocast_away(tmp_path: Path) -> None:
    text = GAN.replace(
        "    output = netD(fake)\n    errG = criterion(output,", "    errG = criterion(judged(fake),"
    ).replace("for real", "def judged(x):\n    return netD(x)\n\n\nfor real")
    sites = seen(
        tmp_path,
        text,
        ("model", "Linear", "nn.Linear(8, 1)", {"used": ["netD("]}),
        ("loss", "backward", "errD_real.backward(", {}),
        ("loss", "backward", "errG.backward(", {}),
    )
    _, patch = patched(tmp_path, text, BF16, sites=sites)
    assert "the backward pass stands in another block" in patch.changes[0].reason


ZOO = """\
import torch
from zoo import models


def build(arch):
    model = models.__dict__[arch]()
    return model.to("cpu")


net = build("small")
out = net(torch.randn(2, 3))
"""


def test_a_model_that_a_library_makes_is_changed_below_the_line_that_names_it(tmp_path: Path) -> None:
    more = {"direct": False, "function": "build", "used": ["net("]}
    held = {"options": {"held_as": {"build": "model", "<module>": "net"}}}
    made = ("model", "ResNet", "models.__dict__[arch](", more | held)
    after, _ = patched(tmp_path, ZOO, LAYOUT, sites=seen(tmp_path, ZOO, made))
    assert "[arch]()\n    model.to(memory_format=torch.channels_last)\n    return" in after
    elsewhere = {"options": {"held_as": {"build": "other"}}}
    made = ("model", "ResNet", "models.__dict__[arch](", more | elsewhere)
    _, patch = patched(tmp_path, ZOO, LAYOUT, sites=seen(tmp_path, ZOO, made))
    assert "a library makes it" in patch.changes[0].reason, "what the line names was not seen to be the model"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'train(nn.Linear(8, 2).to("cpu"), steps)',
            'model = nn.Linear(8, 2).to("cpu")\nmodel.to(memory_format=torch.channels_last)\ntrain(model, steps)',
        ),
        (
            "trainer = Trainer(steps, model=nn.Linear(8, 2))",
            "model.to(memory_format=torch.channels_last)\ntrainer = Trainer(steps, model=model)",
        ),
        (
            "model = nn.DataParallel(nn.Linear(8, 2))",
            "model = nn.DataParallel(nn.Linear(8, 2))\nmodel.to(memory_format=torch.channels_last)",
        ),
    ],
)
def test_a_model_that_is_made_where_it_is_handed_on_gets_a_line_of_its_own(
    tmp_path: Path, line: str, expected: str
) -> None:
    text = f"import torch\nfrom torch import nn\nfrom ours import train, Trainer, steps\n\n{line}\n"
    sites = seen(tmp_path, text, ("model", "Linear", "nn.Linear(", {}))
    after, _ = patched(tmp_path, text, LAYOUT, sites=sites)
    assert expected in after
    if "DataParallel" not in line:
        after, patch = patched(tmp_path, text, LAYOUT, COMPILE, sites=sites)
        assert "model.to(memory_format=torch.channels_last)\nmodel.compile(" in after
        assert len([one for one in changed_lines(patch.diff) if "nn.Linear" in one]) == 2


def test_a_model_that_would_be_made_before_what_draws_stays_where_it_is(tmp_path: Path) -> None:
    text = "import torch\nfrom torch import nn\nfrom ours import train, noise\n\ntrain(noise(), nn.Linear(8, 2))\n"
    sites = seen(tmp_path, text, ("model", "Linear", "nn.Linear(", {}))
    _, patch = patched(tmp_path, text, LAYOUT, sites=sites)
    assert "without giving it a name" in patch.changes[0].reason


@pytest.mark.parametrize(("clip", "changes"), [(", gradient_clip_val=0.5", (True, False)), ("", (True, True))])
def test_lightning_is_not_asked_to_clip_what_it_refuses_to(
    tmp_path: Path, clip: str, changes: tuple[bool, bool]
) -> None:
    text = f"import torch\n\noptimizer = torch.optim.Adam(weights)\ntrainer = Trainer(steps{clip})\n"
    sites = seen(tmp_path, text, ("optimizer", "Adam", "torch.optim.Adam(", {}), ("trainer", "Trainer", "Trainer(", {}))
    for order in ((FUSED, BF16), (BF16, FUSED)):
        _, patch = patched(tmp_path, text, *order, sites=sites)
        assert tuple(change.how == "patched" for change in patch.changes) == changes
        assert changes[1] or "does not clip" in patch.changes[1].reason


METHOD = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x * 2

    def training_step(self, x):
        return self(x).mean()


def main():
    teacher, net = Net(), Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    for x in torch.randn(9, 2, 8):
        loss = net.training_step(x)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
NET: dict[str, Any] = {"options": {"held_as": {"main": "net"}}, "function": "main"}
TRAINED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("optimizer", "Adam", "torch.optim.Adam(", {}), ("loss", "backward", "loss.backward(", {}),
    ("step", "step", "optimizer.step(", {}),
)  # fmt: skip


def test_a_model_that_is_called_by_a_method_is_under_autocast_where_the_loop_calls_that(tmp_path: Path) -> None:
    sites = seen(
        tmp_path,
        METHOD,
        ("model", "Net", "Net()", {**NET, "used": ["self(x).mean("]}),
        *TRAINED,
    )
    (model,) = sites.of("model")
    (caller,) = seen(tmp_path, METHOD, ("model", "", "net.training_step(", {"function": "main"})).sites
    through = model.model_copy(update={"callers": ((Place.model_validate(caller.model_dump()),),)})
    sites = sites.model_copy(update={"sites": (through, *sites.sites[1:])})
    after, patch = patched(tmp_path, METHOD, BF16, sites=sites)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes
    expected = '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            loss = net.training_step(x)\n'
    assert f"{expected}        optimizer.zero_grad(); loss.backward(); optimizer.step()\n" in after


def test_a_model_that_is_named_with_others_at_once_is_changed_below(tmp_path: Path) -> None:
    text = METHOD.replace("net.training_step(x)", "net(x).mean()")
    sites = seen(
        tmp_path,
        text,
        ("model", "Net", "Net()", {**NET, "used": ["net(x)"]}),
        *TRAINED,
    )
    after, _ = patched(tmp_path, text, COMPILE, sites=sites)
    assert "    teacher, net = Net(), Net()\n    net.compile()\n" in after


def test_a_module_that_is_run_by_its_name_begins_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import torch\n")
    (tmp_path / "pkg" / "__main__.py").write_text("import torch\n")
    for module, file in (("pkg.train", "pkg/train.py"), ("pkg", "pkg/__main__.py"), ("absent", None)):
        assert entry_of(Sites(command=("python", "-m", module, "--epochs"), cwd=str(tmp_path))) == file
