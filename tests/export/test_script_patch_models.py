"""Lines of a model: where it gets its name, and mixed precision around the calls that lead to each loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.export.script_patch.source import entry_of
from autoopt.records import Change, Place, ScriptPatch, Site, Sites
from scripted import BF16, COMPILE, FP16, FUSED, LAYOUT, changed_lines, patched, put, seen

LAST = ".to(memory_format=torch.channels_last)\n"

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


UNDER = '    with torch.autocast("cpu", dtype=torch.bfloat16):\n        '
SHOWN = "    if errG > 9:\n        shown = netG(torch.ones(2, 4))\n"
FAKE = "criterion(netD(fake.detach()), torch.zeros(2, 1))"
UNNAMED = GAN.replace(
    f"    errD_fake = {FAKE}\n    errD_fake.backward()\n", f"    # the false ones\n    {FAKE}.backward()\n"
)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (GAN, (LAYOUT, FUSED),
         {f"netG = nn.Linear(4, 8)\nnetG{LAST}": 1, f"netD = nn.Linear(8, 1)\nnetD{LAST}": 1,
          "lr=2e-4, fused=True)": 2}),
        (GAN, (BF16,),
         {UNDER: 3, f"{UNDER}errD_real = criterion(": 1, f"{UNDER}output = netD(fake)\n        errG = criterion(": 1,
          f"{UNDER}fake = netG(torch.randn(2, 4))\n        errD_fake = criterion(": 1}),
        pytest.param(GAN + SHOWN, (BF16,), {UNDER: 3, SHOWN: 1}, id="a picture after the last backward pass"),
        pytest.param(UNNAMED, (BF16,),
                     {f"{UNDER}fake = netG(torch.randn(2, 4))\n    # the false ones\n{UNDER}loss = criterion(": 1,
                      "torch.zeros(2, 1))\n    loss.backward()\n": 1}, id="a loss without a name gets one"),
    ],
)  # fmt: skip
def test_each_model_optimizer_and_loss_of_a_step_gets_the_change(
    tmp_path: Path, text: str, changes: tuple[Change, ...], expected: dict[str, int]
) -> None:
    sites = gan(tmp_path, text, f"{FAKE}.backward(" if text is UNNAMED else "errD_fake.backward(")
    assert [len(site.used) for site in sites.of("model")] == [3, 1 + text.count("shown")]
    after, patch = patched(tmp_path, text, *changes, sites=sites)
    assert {change.how for change in patch.changes} == {"patched"}, patch.changes
    assert {part: after.count(part) for part in expected} == expected


def test_several_losses_are_not_scaled_and_one_without_a_free_name_is_left_alone(tmp_path: Path) -> None:
    _, patch = patched(tmp_path, GAN, FP16, sites=gan(tmp_path))
    assert "3 lines compute gradients" in patch.changes[0].reason
    taken = UNNAMED.replace("real in", "real, loss, step_loss, batch_loss in")
    _, patch = patched(tmp_path, taken, BF16, sites=gan(tmp_path, taken, f"{FAKE}.backward("))
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


# Mixed precision where the script has an autocast of its own that was off.

TURNED_OFF = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--mixed", type=bool, default=False)
args = parser.parse_args()
for x, y in loader:
    with AUTOCAST:
        loss = model(x)
    loss.backward()
"""
OFF = {"device": "cpu", "dtype": "bfloat16", "enabled": False}


def patch_of(
    folder: Path, autocast: str, change: Any = BF16, model: int = 10, end: int = 10, **options: Any
) -> ScriptPatch:
    (folder / "train.py").write_text(TURNED_OFF.replace("AUTOCAST", autocast))

    def at(line: int, end: int = 0, **site: Any) -> Site:
        return Site(file="train.py", line=line, end_line=max(line, end), **site)

    used = (Place(file="train.py", line=model, end_line=model),)
    sites = (
        at(9, end, kind="autocast", call="autocast", options={**OFF, **options}),
        at(3, kind="model", call="Net", used=used),
        at(11, kind="loss", call="backward"),
    )
    found = Sites(command=("python", "train.py"), cwd=str(folder), sites=sites)
    return put(found, change).patch


@pytest.mark.parametrize(
    ("autocast", "options", "added"),
    [
        ('torch.autocast("cpu", enabled=args.amp)', {}, '    with torch.autocast("cpu", enabled=True):'),
        ('torch.autocast("cpu", torch.float16, False)', {"dtype": "float16"},
         '    with torch.autocast("cpu", torch.bfloat16, True):'),
        ('torch.amp.autocast("cpu", enabled=args.mixed)', {},
         'parser.add_argument("--mixed", type=bool, default=True)'),
    ],
)  # fmt: skip
def test_it_is_turned_on_where_it_is_turned_off(
    tmp_path: Path, autocast: str, options: dict[str, Any], added: str
) -> None:
    patch = patch_of(tmp_path, autocast, **options)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes
    assert patch == patch_of(tmp_path, autocast, end=9, **options), "lines of the call, or of all that stands below it"
    assert changed_lines(patch.diff)[1:] == [f"+{added}"]


@pytest.mark.parametrize(
    ("autocast", "more"),
    [
        ("ctx", {}),
        ('torch.autocast("cpu", enabled=args.amp)', {"model": 4}),  # around something else
        ('torch.autocast("cpu", enabled=args.amp)', {"device": "cuda"}),
        ('torch.autocast("cpu", enabled=args.amp)', {"change": FP16}),
        ('torch.autocast("cpu", enabled=args.amp, dtype=wanted)', {"dtype": "float16"}),
    ],
)
def test_else_its_line_is_told(tmp_path: Path, autocast: str, more: dict[str, Any]) -> None:
    patch = patch_of(tmp_path, autocast, **more)
    (change,) = patch.changes
    assert (patch.diff, change.how, change.file, change.line) == ("", "by hand", "train.py", 9)
    assert "train.py:9 has an autocast of its own: write enabled=True" in change.reason


ONE_FUNCTION = """\
import torch
from torch.nn.functional import cross_entropy


def run_epoch(model, batches, optimizer=None):
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in batches:
            LINES


model = Net()
run_epoch(model, train, torch.optim.SGD(model.parameters(), lr=0.1))
"""


def in_bfloat16(folder: Path, text: str) -> ScriptPatch:
    """The patch of bfloat16 on a script that calls ``model(x)`` once and ``loss.backward()`` in other lines."""
    model, loss = {"used": ["model(x)"]}, ("loss", "backward", "loss.backward(", {})
    sites = seen(folder, text, ("model", "Net", "Net(", model), loss)
    return put(sites, BF16).patch


def added(patch: ScriptPatch) -> list[str]:
    """The lines that a patch adds, without their indentation."""
    return [line[1:].strip() for line in changed_lines(patch.diff) if line.startswith("+ ")]


def test_a_function_that_trains_and_evaluates_is_in_mixed_precision_where_it_trains(tmp_path: Path) -> None:
    lines = ["scores = model(x)", "loss = cross_entropy(scores, y)", "if optimizer:", "    loss.backward()"]
    patch = in_bfloat16(tmp_path, ONE_FUNCTION.replace("LINES", "\n            ".join(lines)))
    assert added(patch) == [
        'with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.is_grad_enabled()):',
        "scores = model(x)",
        "loss = cross_entropy(scores, y)",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["scores = model(x)", "if optimizer:", "    loss = cross_entropy(scores, y)", "    loss.backward()"],
        ["loss = model(x)", "for _ in range(2):", "    loss.backward()"],
        ["if optimizer:", "    loss = cross_entropy(model(x), y)", "else:", "    loss.backward()"],
    ],
    ids=["the loss elsewhere", "in a loop", "in another branch"],
)
def test_a_backward_pass_that_is_not_simply_chosen_is_left_alone(tmp_path: Path, lines: list[str]) -> None:
    patch = in_bfloat16(tmp_path, ONE_FUNCTION.replace("LINES", "\n            ".join(lines)))
    assert (patch.diff, patch.changes[0].how) == ("", "plan only")


def test_a_context_of_the_scripts_own_stays_with_autocast_beside_it(tmp_path: Path) -> None:
    text = "import torch\nmodel = Net()\nfor x, y in batches:\n  with ctx:\n    loss = model(x)\n  loss.backward()\n"
    assert added(in_bfloat16(tmp_path, text)) == ['with torch.autocast("cpu", dtype=torch.bfloat16), ctx:']
    longer = text.replace("ctx:", "strategy.forward_context(step, epoch, model, scaler):")
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):' in added(in_bfloat16(tmp_path, longer))
