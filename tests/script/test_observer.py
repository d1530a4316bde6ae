"""Frames that the observer takes for the user's own, and the lines that import for long."""

from __future__ import annotations

import builtins
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoopt.script import frames
from autoopt.script.frames import ImportClock, import_sites, names_of
from autoopt.script.observer import Observer
from autoopt.script.torch_hooks import TorchHooks
from tests.script.conftest import StartScript, edited


def test_what_a_library_prints_is_no_line_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "print", print)  # is put back at the end
    monkeypatch.delitem(sys.modules, "this", raising=False)
    hooks = SimpleNamespace(session=SimpleNamespace(standing=False, steps=1), watchers=[])
    observer = Observer(cast(TorchHooks, cast(Any, hooks)))
    observer._timed(builtins, "print", "print")
    importlib.import_module("this")  # prints
    assert not observer._sites
    print("a line of the user's own")
    (seen,) = observer._sites.values()
    assert (seen.kind, seen.found.place.file.endswith("test_observer.py")) == ("forced", True)


class Holder:
    """Keeps a model as an attribute, as a Trainer of somebody's own does."""

    def __init__(self, model: object) -> None:
        self.model = model

    def run(self) -> dict[str, str]:
        return self.within()

    def within(self) -> dict[str, str]:
        return names_of(self.model)


class Proxy:
    """Answers to nothing before there is what it stands for."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


def test_each_function_that_holds_a_model_is_known_with_its_name_for_it() -> None:
    proxy, net = Proxy(), object()
    found = names_of(net)
    assert found["test_each_function_that_holds_a_model_is_known_with_its_name_for_it"] == "net"
    held = Holder(net).run()
    assert held["Holder.run"] == held["Holder.within"] == "self.model"
    other = names_of(object())
    assert other == {}
    del proxy


def test_what_a_package_beside_the_folder_makes_is_placed_where_the_folder_s_own_code_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "beside" / "zoo_of_test.py").write_text("def make(ask):\n    return ask()\n")
    (tmp_path / "folder" / "train_of_test.py").write_text(
        "import sys\nimport zoo_of_test as zoo\n\ndef main(ask):\n    return zoo.make(lambda: ask(sys._getframe(1)))\n"
    )
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setattr(frames, "_folder", str(tmp_path / "folder"))
    frames.shown.cache_clear()
    monkeypatch.syspath_prepend(tmp_path / "beside")
    monkeypatch.syspath_prepend(tmp_path / "folder")
    main = importlib.import_module("train_of_test").main
    found = main(frames.editable_place)
    assert (found.place.file, found.place.line, found.direct) == ("train_of_test.py", 5, False)
    assert main(frames.user_place).place.file.endswith("zoo_of_test.py")
    frames.shown.cache_clear()


def test_a_line_has_what_it_imports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_one.py").write_text("import time\nimport inner_one\ntime.sleep(0.06)\n")
    (tmp_path / "inner_one.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("autoopt.script.frames.is_users", lambda file: file.startswith((str(tmp_path), __file__)))
    clock = ImportClock()
    clock.start()
    try:
        import outer_one  # noqa: F401
    finally:
        clock.stop()
    inner, outer = import_sites(clock)
    assert (Path(inner.file).name, inner.line, inner.call) == ("outer_one.py", 2, "inner_one")
    assert (Path(outer.file).name, outer.call) == (Path(__file__).name, "outer_one")
    assert inner.options["seconds"] >= 0.2
    assert outer.options["seconds"] < 0.2, "what it imports in turn is another line's"
    assert clock.seconds >= 0.26
    assert "torch" in sys.modules, "what is there already takes nothing"


@pytest.mark.slow
def test_slow_imports_have_their_lines(start_script: StartScript, folder: Path) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(0.1)\n")
    (folder / "late.py").write_text("import time\ntime.sleep(0.2)\n")
    imports = (("import sys\n", "import slow\n"), ("import torch\n", "import torch\nimport late\n"))
    endless = ("int(sys.argv[1]) if len(sys.argv) > 1 else 200", "100000")
    text = edited(folder, "plain.py", *imports, endless)
    sites = start_script.watch("plain.py", fresh=True, steps=9)
    there = [(1 + text.splitlines().index(f"import {name}"), name) for name in ("late", "slow")]
    assert [(site.line, site.call) for site in sites.of("import")] == there
