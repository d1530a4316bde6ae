"""Arguments that come out of a configuration: the one line that sets them is changed, or told to a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.export.applying import apply_diff
from autoopt.records import ScriptPatch
from scripted import WORKERS, put, sites_of

TRAIN = "from torch.utils.data import DataLoader\n{imports}\nloader = DataLoader(data, 4, num_workers={value})\n"


def patch_of(folder: Path, imports: str, value: str, files: dict[str, str], *words: str, seen: int = 4) -> ScriptPatch:
    """The patch of a loader that is given ``value``, which other files may set."""
    text = TRAIN.format(imports=imports, value=value)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    sites = sites_of(folder, text, "loader =", *words, options={"num_workers": seen, "batch_size": 4})
    return put(sites, WORKERS).patch


NODE = """\
class Node:
    pass


def default():
    C = Node()
    C.batch_size = 8
    C.num_workers = 4
    return C
"""
SPACES = "from types import SimpleNamespace as Space\ncfg = Space(data=Space(\n  num_workers=4))\n"


@pytest.mark.parametrize(
    ("imports", "value", "files", "name", "changed"),
    [
        (
            "from cfg import default\nconfig = default()",
            "config.num_workers",
            {"cfg.py": NODE},
            "cfg.py",
            "    C.num_workers",
        ),
        ("from constants import WORKERS", "WORKERS", {"constants.py": "WORKERS = 4\n"}, "constants.py", "WORKERS"),
        ("from constants import *", "WORKERS", {"constants.py": "WORKERS = 4\n"}, "constants.py", "WORKERS"),
        ("import constants as c", "c.WORKERS", {"constants.py": "WORKERS = 4\n"}, "constants.py", "WORKERS"),
        (
            "from pkg.config import Config\ncfg = Config()",
            "cfg.workers",
            {"pkg/__init__.py": "", "pkg/config.py": "class Config:\n    workers: int = 4\n"},
            "pkg/config.py",
            "    workers: int",
        ),
        (
            "from conf import cfg",
            "cfg.data.num_workers",
            {"conf.py": SPACES},
            "conf.py",
            "  num_workers",
        ),
    ],
)
def test_the_one_line_of_the_users_files_that_sets_it_is_changed(
    tmp_path: Path, imports: str, value: str, files: dict[str, str], name: str, changed: str
) -> None:
    patch = patch_of(tmp_path, imports, value, files)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes
    assert f"+++ b/{name}" in patch.diff
    (added,) = [line for line in patch.diff.split(f"+++ b/{name}")[1].splitlines() if line.startswith(f"+{changed}")]
    assert "4" not in added
    assert "persistent_workers=True" in patch.diff


@pytest.mark.parametrize(
    ("files", "words", "reason"),
    [
        ({"conf/other.yaml": "data:\n  num_workers: 4  # as many as cores\n"}, (), "no one line was seen to set"),
        ({"conf.json": '{"num_workers": 4, "x": 1}\n'}, (), "no one line was seen to set"),  # several keys on a line
        ({"a.yaml": "num_workers: 4\n", "b.yaml": "num_workers: 4\n"}, (), "no one line was seen to set"),
        ({"conf/train.yaml": "num_workers: 8\n"}, (), "no one line was seen to set"),
        ({"a.yaml": "num_workers: 4\n"}, ("data.num_workers=4",), "the command gives data.num_workers"),
        ({"a.yaml": "num_workers: 4\n"}, ("--data.num-workers=4",), "the command gives --data.num-workers"),
        ({".hidden/a.yaml": "num_workers: 4\n"}, (), "no one line was seen"),
    ],
)
def test_what_several_lines_may_set_is_written_into_the_call(
    tmp_path: Path, files: dict[str, str], words: tuple[str, ...], reason: str
) -> None:
    imports = "import hydra\ncfg = hydra.compose('train')"
    patch = patch_of(tmp_path, imports, "cfg.data.num_workers", files, *words)
    (change,) = patch.changes
    assert change.how == "patched"
    assert "+loader = DataLoader(data, 4, num_workers=2, persistent_workers=True)" in patch.diff
    assert reason in change.reason


def test_lines_that_set_it_to_something_else_than_arrived_are_not_in_question(tmp_path: Path) -> None:
    files = {"cfg.py": NODE, "other.py": "import cfg\nC = cfg.default()\nC.num_workers = 8\n"}
    patch = patch_of(tmp_path, "import other\nconfig = other.C", "config.num_workers", files, seen=8)
    assert "+++ b/other.py" in patch.diff
    files["other.py"] += "C.num_workers = read()\n"
    patch = patch_of(tmp_path, "import other\nconfig = other.C", "config.num_workers", files, seen=8)
    assert "no one line was seen to set" in patch.changes[0].reason
    assert "other.py" not in patch.diff


@pytest.mark.parametrize(
    ("imports", "name", "text", "changed"),
    [
        (
            "import hydra\ncfg = hydra.compose('train')",
            "conf/train.yaml",
            "data:\n  batch_size: 8\n  num_workers: 4  # not 8\n",
            "  num_workers: 2  # not 8",
        ),
        ("cfg = json.load(open('c.json'))", "c.json", '{\n  "num_workers": 4,\n  "x": 1}\n', '  "num_workers": 2,'),
        ("cfg = toml.load('c.toml')", "c.toml", "[data]\r\nnum_workers = 4\r\n", "num_workers = 2"),
        ("cfg = OmegaConf.load('c.yaml')", "c.yaml", "num_workers: 4", "num_workers: 2"),
    ],
    ids=["YAML that is named by its stem", "JSON", "TOML", "no line's end"],
)
def test_a_value_is_changed_in_the_file_that_the_script_reads(
    tmp_path: Path, imports: str, name: str, text: str, changed: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    patch = patch_of(tmp_path, imports, "cfg.data.num_workers", {})
    assert "no one line" in patch.changes[0].reason, "the file is not there yet"
    (tmp_path / name).write_bytes(text.encode())
    patch = patch_of(tmp_path, imports, "cfg.data.num_workers", {})
    assert [change.how for change in patch.changes] == ["patched"]
    assert "persistent_workers=True" in patch.diff
    assert set(apply_diff(patch.diff, tmp_path)) == {name, "train.py"}
    after = (tmp_path / name).read_bytes().decode()
    assert changed in after.splitlines()
    assert after == text.replace("4", "2")
    apply_diff(patch.diff, tmp_path, revert=True)
    assert (tmp_path / name).read_bytes() == text.encode()


@pytest.mark.parametrize("value", ["os.cpu_count()", "os.cpu_count() // 2", "min(8, os.cpu_count() or 1)", "WORKERS"])
def test_what_asks_the_machine_becomes_the_number(tmp_path: Path, value: str) -> None:
    patch = patch_of(tmp_path, "import os\nWORKERS = len(os.sched_getaffinity(0))", value, {})
    assert [change.how for change in patch.changes] == ["patched"]
    assert ("+WORKERS = 2" if value == "WORKERS" else "num_workers=2") in patch.diff
