"""Libraries in the fork server: imported once, by real processes, and given up where importing does more than that."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher
from autoopt.trial.preloading import Imports, device_opened
from autoopt.trial.start import ForkServer

HERE = Path(__file__).parent
WORKLOADS = HERE.parent / "workloads"


def test_libraries_are_in_the_server_after_the_first_trial_and_the_users_own_code_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user's code has set by then is what they find there; a trial begins without it.

    The user's code sets it there again, and may ask whether it is set.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TAKEN_AWAY", "yes")
    reads = "import os\nBEFORE = [os.environ.get(name) for name in ('HOME_OF', 'LATE', 'TAKEN_AWAY')]\n"
    libraries = {
        "early": reads,
        "late": reads,
        "seeds": "import os\nos.environ['AT_IMPORT'] = '1'\ndef seed_all():\n    os.environ['SEED'] = '3'\n",
        "third_party": "import os, sys\nPID = os.getpid()\nBEFORE = 'mine' not in sys.modules\n"
        "os.environ.setdefault('SET_BY_LIBRARY', 'yes')\n",
    }
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, text in libraries.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import os\nBEFORE = [os.environ.get(n) for n in ('HOME_OF', 'LATE', 'TAKEN_AWAY', 'SEED', 'AT_IMPORT')]\n"
        "os.environ['HOME_OF'] = '/there'\nimport early\n"
        "import seeds\nseeds.seed_all()\nos.environ['LATE'] = '1'\ndel os.environ['TAKEN_AWAY']\n"
        "import late, third_party\nPID = os.getpid()\nfrom tiny import build\n"
    )
    spec = TrialSpec(workload=f"{mine}:build", search_path=(str(HERE), str(WORKLOADS)), directory=str(tmp_path))
    fresh = spec.model_copy(update={"flags": {"env": {"X": "1"}}})
    found: list[dict[str, Any]] = []
    with Launcher(live="mini_live:TrialContext") as launcher:
        for each in (spec, spec, fresh):
            with launcher.start(each, log=tmp_path / "trial.log", timeout=60.0) as trial:
                found.append(trial.call("mini_live:imported", timeout=30, names=["third_party", "mine"]))
                at_import = trial.call("mini_live:before", timeout=30, names=["mine", "early", "late"])
            assert at_import["early"] == ["/there", None, "yes"]
            assert at_import["late"] == ["/there", "1", None]
            assert at_import["mine"] == [None, None, "yes", None, None if len(found) == 1 else "1"]
    first, second, third = found
    assert first["third_party"] == first["mine"] == first["pid"]
    assert second["third_party"] not in (second["pid"], first["pid"])
    assert second["mine"] == second["pid"] != first["pid"]
    for name, value in (("SET_BY_LIBRARY", "yes"), ("SEED", "3")):
        assert [each["environment"].get(name) for each in found] == [value] * 3
    assert first["random"] == second["random"] == third["random"]
    assert (first["before"], third["before"]) == (False, True), "what building takes is the same, forked or fresh"


def test_a_launcher_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "waits.py").write_text("import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()\n")
    monkeypatch.syspath_prepend(str(folder))
    mine = tmp_path / "mine.py"
    mine.write_text("import waits\nimport tiny\nfrom tiny import build\n")
    spec = TrialSpec(workload=f"{mine}:build", search_path=(str(HERE), str(WORKLOADS)), directory=str(tmp_path))
    with Launcher(live="mini_live:TrialContext") as launcher, caplog.at_level(logging.INFO, "autoopt.trial.parent"):
        for _ in range(2):
            with launcher.start(spec, log=tmp_path / "trial.log", timeout=60.0) as trial:
                assert trial.call("mini_live:steps", timeout=30, count=1)["losses"]
    assert "importing its libraries changes threads" in caplog.text


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("libraries") / "site-packages"
    folder.mkdir()
    (folder.parent / "users_own.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def server(libraries: Path) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(libraries))
        patch.syspath_prepend(str(libraries.parent))
        server = ForkServer()
        server.start()
        yield server
        server.close()


JEMALLOC = """
import ctypes, threading
def wait():
    ctypes.CDLL(None).prctl(15, b'jemalloc_bg_thd')  # pyarrow's: it locks itself around a fork
    NAMED.set()
    threading.Event().wait()
NAMED = threading.Event()
threading.Thread(target=wait, daemon=True).start()
NAMED.wait()
"""
LIBRARIES = {
    "thread": ("import threading as t; t.Thread(target=t.Event().wait, daemon=True).start()", "changes threads"),
    "device": ("import torch; torch.cuda._initialized = True", "changes the device"),
    "affinity": ("import os; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})", "changes affinity"),
    "defaults": ("import torch; torch.set_default_dtype(torch.float64)", "changes torch's defaults"),
    "process": ("import subprocess; CHILD = subprocess.Popen(['sleep', '60'])", "changes processes"),
    "signal": ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "changes signals"),
    "variable": ("import os; os.environ['X_OF_LIBRARY'] = '1'", "(X_OF_LIBRARY)"),
    "crash": ("import os; os._exit(3)", "ended the process"),
    "users_file": ("import users_own", "which is no library"),
    "draws": ("import random, numpy, torch; random.random(); numpy.random.rand(); torch.rand(1)", ""),
    "allocates": (JEMALLOC, ""),
    "broken": ("raise ImportError('not here')", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_does_more_than_define_things_is_left_to_the_trials(
    name: str, server: ForkServer, libraries: Path
) -> None:
    """Each order is refused, so that the server stays plain and can be asked again."""
    if name == "affinity" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    source, why = LIBRARIES[name]
    said = server.preload(seen(libraries, f"does_{name}", source))
    assert why in said if why else said == ""


def test_another_file_of_the_same_name_is_no_library_of_the_trial(server: ForkServer, libraries: Path) -> None:
    imports = seen(libraries, "shadowed", "import shadows")
    (libraries / "shadows.py").write_text("")
    imports.modules["shadows"] = "/home/somebody/shadows.py"
    assert "the module shadows is /home/somebody/shadows.py in a trial" in server.preload(imports)


def seen(libraries: Path, name: str, source: str) -> Imports:
    file = libraries / f"{name}.py"
    file.write_text(source)
    return Imports(modules={name: str(file)}, environment=dict(os.environ))


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        (["/dev/null"], False),
        (["/dev/nvidiactl", "/dev/nvidia0"], False),  # NVML, by which torch counts devices
        (["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"], True),
    ],
)
def test_a_library_that_only_asks_for_devices_is_imported_in_the_server(
    files: list[str], opened: bool, tmp_path: Path
) -> None:
    """torch counts devices by NVML there, and never closes it: each such library was left to the trials."""
    for number, file in enumerate(files):
        (tmp_path / str(number)).symlink_to(file)
    assert device_opened(str(tmp_path)) is opened
