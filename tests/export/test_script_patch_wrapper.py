"""Arguments of the ``DistributedDataParallel`` that a script makes by itself, as its patch writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.records import Change
from autoopt.script.sayable import unsayable
from autoopt.setup import Setup
from scripted import PLAIN, changed_lines, patched, sites_in

WRAPPED = PLAIN.replace(
    "    model = nn.Linear(8, 2)\n",
    "    model = nn.Linear(8, 2)\n    model = DistributedDataParallel(model, find_unused_parameters=True)\n",
).replace("from torch import nn\n", "from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel\n")
MODEL = ("DistributedDataParallel", "DistributedDataParallel(")


def test_arguments_go_into_the_scripts_own_call(tmp_path: Path) -> None:
    setting = {"bucket_view": True, "static_graph": True, "bucket_megabytes": 50.0}
    sites = sites_in(tmp_path, WRAPPED, model=MODEL)
    after, patch = patched(tmp_path, WRAPPED, Change(strategy="ddp_options", setting=setting), sites=sites)
    assert [change.how for change in patch.changes] == ["patched"]
    call = " ".join(after.partition("DistributedDataParallel(")[2].partition(")")[0].split())
    wanted = ("find_unused_parameters=False", "gradient_as_bucket_view=True", "static_graph=True", "bucket_cap_mb=50.0")
    assert all(argument in call for argument in wanted)
    assert call.count("find_unused_parameters") == 1


def test_gradients_in_fewer_bytes_are_a_hook_below_the_call(tmp_path: Path) -> None:
    sites = sites_in(tmp_path, WRAPPED, model=MODEL)
    compressed = Change(strategy="ddp_options", setting={"compression": "bfloat16"})
    _, patch = patched(tmp_path, WRAPPED, compressed, sites=sites)
    added = [line for line in changed_lines(patch.diff) if line.startswith("+")]
    assert any("model.register_comm_hook(None, " in line for line in added)


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
    found = unsayable(Setup().with_distributed(**changed), sites_in(tmp_path, WRAPPED, model=MODEL))
    assert found is None if reason is None else reason in (found or "")
    plain = unsayable(Setup().with_distributed(bucket_view=True), sites_in(tmp_path, PLAIN))
    assert plain == "the script was not seen to make a DistributedDataParallel"
