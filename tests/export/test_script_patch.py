"""The patch of a script: small, clean, applied and reverted by git, and honest where it cannot be written."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.records import Change, Place, Site, Sites
from autoopt.script.applicable import inapplicable
from autoopt.setup import Setup
from scripted import BF16, COMPILE, FP16, FUSED, LAYOUT, PLAIN, THREADS, WORKERS, changed_lines, patched, put, sites_in

AFFINITY = Change(strategy="affinity", setting={"affinity": [0]})
SEGMENTS = Change(strategy="allocator", setting={"expandable_segments": True})


def with_import(name: str) -> str:
    return PLAIN.replace("import torch\n", f"import torch as {name}\n").replace("torch.optim.", f"{name}.optim.")


MADE = PLAIN.replace("model = nn.Linear(8, 2)", "model = make()\n    model = model.to('cpu')")
MADE += "\n\ndef make():\n    return nn.Linear(8, 2)\n"
WRAPPED = PLAIN.replace(
    "    model = nn.Linear(8, 2)\n",
    "    model = nn.Linear(8, 2)\n    model = DistributedDataParallel(model, find_unused_parameters=True)\n",
).replace("from torch import nn\n", "from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel\n")
COMPRESSED = Change(strategy="ddp_options", setting={"compression": "bfloat16"})


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        pytest.param(PLAIN, [COMPILE], ["    model = nn.Linear(8, 2)\n    model.compile()\n    optimizer"],
                     id="below the line that makes the model"),
        pytest.param(MADE, [COMPILE], ["    model = model.to('cpu')\n    model.compile()\n"],
                     id="a model that a function returns is named where it is used"),
        pytest.param(PLAIN, [THREADS], ["from data import Pictures  # ours\n\ntorch.set_num_threads(1)\n"],
                     id="flags below the imports"),
        pytest.param(with_import("th"), [THREADS], ["\nth.set_num_threads(1)\n"], id="by the script's own name"),
        pytest.param(PLAIN, [FUSED, LAYOUT],
                     ["AdamW(model.parameters(), lr=1e-3, fused=True)",
                      "    model = nn.Linear(8, 2)\n    model.to(memory_format=torch.channels_last)\n"],
                     id="where optimizer and model are made"),
        pytest.param(PLAIN, [BF16],
                     ["\n\n        # one step\n        with torch.autocast(\"cpu\", dtype=torch.bfloat16):\n"
                      "            out = model(x)\n            loss = nn.functional.cross_entropy(out, y)\n"
                      "        optimizer.zero_grad()\n"], id="autocast around forward and loss"),
        pytest.param(PLAIN, [THREADS, WORKERS, BF16, COMPILE], ["set_num", "num_workers", "autocast", "compile"],
                     id="each has its own hunk"),
        *(pytest.param(PLAIN, [each], [], id=f"a user can take {each.strategy} alone") for each in (WORKERS, BF16)),
        *((PLAIN.replace(at, at + "    import os\n"), [AFFINITY], ["\nimport os\n", "\nos.sched_setaffinity("])
          for at in ("def main():\n", '__main__":\n')),
        pytest.param(WRAPPED, [COMPRESSED], ["_parameters=True)\n    model.register_comm_hook(None, "],
                     id="a hook below the call that wraps the model"),
    ],
)  # fmt: skip
def test_a_change_stands_where_it_belongs(
    tmp_path: Path, text: str, changes: list[Change], expected: list[str]
) -> None:
    wrapped = {"model": "DistributedDataParallel("} if text is WRAPPED else {}
    sites = sites_in(tmp_path, text, optimizer=("torch.optim.", "th.optim."), **wrapped)
    after, patch = patched(tmp_path, text, *changes, sites=sites)
    assert [change.how for change in patch.changes] == ["patched"] * len(changes)
    assert [each for each in expected if each not in after] == []
    if AFFINITY in changes:  # what a function or a later line imports is not imported at the top
        assert after.index(expected[0]) < after.index(expected[1])


def valued(sites: Sites, **options: dict[str, Any]) -> Sites:
    """Sites with the options that the live objects were seen to have, by kind."""
    changed = [site.model_copy(update={"options": options.get(site.kind, {})}) for site in sites.sites]
    return sites.model_copy(update={"sites": tuple(changed)})


def test_a_batch_and_its_learning_rate_are_changed_where_both_are_made(tmp_path: Path) -> None:
    larger = Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 1.4142, "warmup_steps": 0})
    sites = valued(sites_in(tmp_path, PLAIN), loader_training={"batch_size": 32}, optimizer={"lr": 1e-3})
    after, patch = patched(tmp_path, PLAIN, larger, sites=sites)
    assert "DataLoader(Pictures(), batch_size=64, shuffle=True)" in after
    assert "AdamW(model.parameters(), lr=0.0014142)" in after
    assert len(changed_lines(patch.diff)) == 4
    unknown = valued(sites_in(tmp_path, PLAIN), loader_training={"batch_size": 32}, optimizer={})
    _, patch = patched(tmp_path, PLAIN, larger, sites=unknown)
    assert [each.how for each in patch.changes] == ["plan only"]
    assert "learning rate" in patch.changes[0].reason
    warm = Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 1.4142, "warmup_steps": 9})
    assert "warm-up" in patched(tmp_path, PLAIN, warm, sites=sites)[1].changes[0].reason


def test_a_line_below_the_loader_groups_its_samples(tmp_path: Path) -> None:
    grouping = Change(strategy="length_grouping", setting={"pool": 50})
    after, patch = patched(tmp_path, PLAIN, grouping)
    assert [(each.how, each.line) for each in patch.changes] == [("patched", 11)]
    below = "    loader = DataLoader(Pictures(), batch_size=32, shuffle=True)\n    group_by_length(loader, pool=50)\n"
    assert below in after
    assert "from prepared import group_by_length" in after
    assert "def group_by_length(" in patch.diff
    unnamed = PLAIN.replace("    loader = DataLoader(Pictures(), batch_size=32, shuffle=True)\n", "").replace(
        "in loader:", "in DataLoader(Pictures(), batch_size=32, shuffle=True):"
    )
    assert "without giving it a name" in patched(tmp_path, unnamed, grouping)[1].changes[0].reason


def test_each_line_that_makes_a_training_loader_gets_the_arguments(tmp_path: Path) -> None:
    text = PLAIN.replace(
        "    model = nn",
        "    other = DataLoader(Pictures(2), batch_size=8)\n"
        "    valid = DataLoader(Pictures(3), batch_size=9)\n    model = nn",
    )
    sites = sites_in(tmp_path, text, loader_validation="DataLoader(Pictures(3)")
    second = sites_in(tmp_path, text, loader_training="DataLoader(Pictures(2)").of("loader_training")
    after, _ = patched(tmp_path, text, WORKERS, sites=sites.model_copy(update={"sites": (*sites.sites, *second)}))
    assert "DataLoader(Pictures(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)" in after
    assert "DataLoader(Pictures(2), batch_size=8, num_workers=2, persistent_workers=True)" in after
    assert "DataLoader(Pictures(3), batch_size=9)" in after
    validation = Change(strategy="validation_loader", setting={"num_workers": 1, "persistent_workers": True})
    after, _ = patched(tmp_path, text, validation, sites=sites)
    assert "DataLoader(Pictures(3), batch_size=9, num_workers=1, persistent_workers=True)" in after
    third = sites_in(tmp_path, text, loader_validation="DataLoader(Pictures(2)").of("loader_validation")
    both = sites.model_copy(update={"sites": (*sites.sites, *third)})
    kept = {"batch_size": 256, "samples": {"where": "memory", "workers": 0}}
    after, _ = patched(tmp_path, text, Change(strategy="validation_loader", setting=kept), sites=both)
    for number in (2, 3):
        assert f"DataLoader(KeptSamples(Pictures({number})), batch_size=256)" in after


CALL = "DataLoader(Pictures(), batch_size=32, shuffle=True)"
IN_LINES = "DataLoader(\n    Pictures(),  # all\n    batch_size=32,\n    num_workers=0,\n    shuffle=True,\n    )"
NAMED = PLAIN.replace("shuffle=True)", "shuffle=True, num_workers=WORKERS)")
FEW = Change(strategy="workers", setting={"num_workers": 2})


@pytest.mark.parametrize(
    ("text", "change", "changed"),
    [
        (PLAIN, WORKERS,
         [f"-    loader = {CALL}", f"+    loader = {CALL[:-1]}, num_workers=2, persistent_workers=True)"]),
        pytest.param(PLAIN.replace(CALL, IN_LINES), WORKERS,
                     ["-    num_workers=0,", "+    num_workers=2,", "+    persistent_workers=True,"],
                     id="an argument that is there is changed in its place and its layout stays"),
        *((NAMED.replace("\n\ndef main", f"\n{place}0\n\ndef main"), FEW, [f"-{place}0", f"+{place}2"])
          for place in ("WORKERS = ", "WORKERS: int = ")),
    ],
)  # fmt: skip
def test_a_loaders_options_are_set_where_they_are_made(
    tmp_path: Path, text: str, change: Change, changed: list[str]
) -> None:
    _, patch = patched(tmp_path, text, change)
    assert changed_lines(patch.diff) == changed
    assert [(each.how, each.file) for each in patch.changes] == [("patched", "train.py")]


def test_float16_gets_a_scaler_and_unscales_before_clipping(tmp_path: Path) -> None:
    text = textwrap.dedent(PLAIN.partition("    # the data\n")[2].partition("\n\nif __name__")[0])
    text = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n" + text
    after, _ = patched(tmp_path, text, FP16)
    assert '\nscaler = torch.amp.GradScaler("cpu")\n' in after
    step = after.partition("optimizer.zero_grad()\n")[2].partition("    print")[0]
    assert [line.strip() for line in step.splitlines()] == [
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]


def test_a_backward_pass_in_another_function_leaves_precision_to_the_plan(tmp_path: Path) -> None:
    text = (
        PLAIN.replace("        out = model(x)\n", "        out = run(model, x)\n")
        + "\n\ndef run(model, x):\n    return model(x)\n"
    )
    _, patch = patched(tmp_path, text, BF16, WORKERS)
    assert [change.how for change in patch.changes] == ["plan only", "patched"]
    assert "another block" in patch.changes[0].reason
    assert "autocast" not in patch.diff


def test_a_file_outside_the_folder_is_not_edited(tmp_path: Path) -> None:
    sites = sites_in(tmp_path, PLAIN)
    moved = tuple(s.model_copy(update={"file": "/elsewhere/lib.py"}) for s in sites.of("loader_training"))
    patch = put(sites.model_copy(update={"sites": moved}), WORKERS).patch
    assert patch.diff == ""
    assert "outside the folder" in patch.changes[0].reason


@settings(max_examples=5, deadline=None)
@given(
    indent=st.sampled_from(["    ", "  ", "\t"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    nested=st.booleans(),
    ends=st.booleans(),
    changes=st.lists(st.sampled_from([WORKERS, THREADS, BF16, COMPILE]), unique_by=lambda c: c.strategy, min_size=1),
)
def test_any_layout_gives_a_patch_that_applies_and_reverts(
    tmp_path_factory: pytest.TempPathFactory, indent: str, newline: str, nested: bool, ends: bool, changes: list[Change]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    text = PLAIN.replace("    ", indent)
    if nested:
        head, _, body = text.partition("def main():\n")
        body = body.partition("\n\nif __name__")[0]
        text = f"{head}class Trainer:\n{indent}def main(self):\n" + textwrap.indent(body, indent) + "\n"
    text = text if ends else text.rstrip("\n")
    sites = sites_in(folder, text)
    data = text.replace("\n", newline).encode()
    (folder / "train.py").write_bytes(data)
    found = put(sites, *changes)
    patch = found.patch
    assert {change.how for change in patch.changes} == {"patched"}
    (folder / "patch.diff").write_bytes(patch.diff.encode())
    after = found.texts["train.py"]
    compile(after, "train.py", "exec")
    for direction, expected in (((), after.encode()), (("-R",), data)):
        subprocess.run(["git", "apply", *direction, "patch.diff"], cwd=folder, check=True, capture_output=True)
        assert (folder / "train.py").read_bytes() == expected


PINNED = Change(strategy="pin_memory", setting={"pin_memory": True, "non_blocking": True})


def test_batches_that_the_loop_moves_are_moved_without_blocking(tmp_path: Path) -> None:
    text = PLAIN.replace("\n        # one step\n", "        x, y = x.to(device), y.to(device)\n")
    sites = sites_in(tmp_path, text)
    line = 1 + text[: text.index("for x, y in loader")].count("\n")
    loop = Place(file="train.py", line=line, end_line=line)
    seen = tuple(s.model_copy(update={"used": (loop,)}) if s.kind == "loader_training" else s for s in sites.sites)
    after, _ = patched(tmp_path, text, PINNED, sites=sites.model_copy(update={"sites": seen}))
    assert "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)" in after
    assert "shuffle=True, pin_memory=True)" in after
    _, patch = patched(tmp_path, PLAIN, PINNED)
    assert "moves its batch" in patch.changes[0].reason


def test_freed_memory_is_kept_by_a_line_of_the_script(tmp_path: Path) -> None:
    after, patch = patched(tmp_path, PLAIN, Change(strategy="allocator"))
    assert [each.how for each in patch.changes] == ["patched"]
    added = [line for line in changed_lines(patch.diff.split("--- /dev/null")[0]) if line != "+"]
    assert added == ["+from prepared import keep_freed_memory", "+keep_freed_memory()"]
    assert after.index("from prepared import") < after.index("\nkeep_freed_memory()")
    assert "def keep_freed_memory():" in patch.diff


def test_the_environment_is_set_where_the_script_is_started(tmp_path: Path) -> None:
    _, patch = patched(tmp_path, PLAIN, SEGMENTS, THREADS)
    assert patch.environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert [each.how for each in patch.changes] == ["by hand", "patched"]
    assert changed_lines(patch.diff) == ["+", "+torch.set_num_threads(1)"]


@pytest.mark.parametrize(
    ("call", "change", "expected"),
    [
        ("TrainingArguments", BF16, "TrainingArguments('out', bf16=True)"),
        (
            "Seq2SeqTrainingArguments",
            WORKERS,
            "    'out', dataloader_num_workers=2, dataloader_persistent_workers=True\n",
        ),
        ("Trainer", BF16, "Trainer('out', precision=\"bf16-mixed\")"),
        ("Accelerator", BF16, "Accelerator('out', mixed_precision=\"bf16\")"),
    ],
)
def test_a_library_s_trainer_gets_its_own_arguments(tmp_path: Path, call: str, change: Change, expected: str) -> None:
    text = f"import torch\n\nloop = {call}('out')\nloop.run()\n"
    (tmp_path / "train.py").write_text(text)
    made = Site(kind="trainer", call=call, file="train.py", line=3, end_line=3)
    hidden = Site(kind="loader_training", call="DataLoader", file="train.py", line=4, end_line=4, direct=False)
    sites = Sites(command=("python", "train.py"), cwd=str(tmp_path), sites=(made, hidden))
    after, patch = patched(tmp_path, text, change, sites=sites)
    assert expected in after
    assert [(c.how, c.line) for c in patch.changes] == [("patched", 3)]


MODEL = "DistributedDataParallel("


def test_arguments_go_into_the_scripts_own_call(tmp_path: Path) -> None:
    setting = {"bucket_view": True, "static_graph": True, "bucket_megabytes": 50.0}
    sites = sites_in(tmp_path, WRAPPED, model=MODEL)
    after, patch = patched(tmp_path, WRAPPED, Change(strategy="ddp_options", setting=setting), sites=sites)
    assert [change.how for change in patch.changes] == ["patched"]
    call = " ".join(after.partition("DistributedDataParallel(")[2].partition(")")[0].split())
    wanted = ("find_unused_parameters=False", "gradient_as_bucket_view=True", "static_graph=True", "bucket_cap_mb=50.0")
    assert all(argument in call for argument in wanted)
    assert call.count("find_unused_parameters") == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bucket_view": True}, None),
        ({"processes": 2}, "by a launcher"),
        ({"own_cores": True}, "it needs build"),
        ({"sharded_optimizer": True}, "it needs build"),
    ],
)
def test_what_can_be_said_of_processes(tmp_path: Path, changed: dict[str, bool], reason: str | None) -> None:
    found = inapplicable(Setup().with_distributed(**changed), sites_in(tmp_path, WRAPPED, model=MODEL))
    assert found is None if reason is None else reason in (found or "")
    plain = inapplicable(Setup().with_distributed(bucket_view=True), sites_in(tmp_path, PLAIN))
    assert plain == "the script was not seen to make a DistributedDataParallel"
