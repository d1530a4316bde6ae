"""The packaging: what is installed and built, and that the make targets are those that people are told of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "autoopt": ROOT / "autoopt",
    "autoopt_model": ROOT / "strategies" / "autoopt_model",
    "autoopt_strategies": ROOT / "strategies" / "autoopt_strategies",
    "autoopt_reports": ROOT / "reports" / "autoopt_reports",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_our_packages_and_nothing_beside(wheel: zipfile.ZipFile, project: dict[str, Any]) -> None:
    info = f"torch_autoopt-{project['version']}.dist-info"
    assert {name.split("/")[0] for name in wheel.namelist()} == {*PACKAGES, info}
    for name, folder in PACKAGES.items():
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        wanted = {f"{name}/{path.relative_to(folder)}" for path in files if not path.name.startswith(".")}
        assert f"{name}/py.typed" in wanted
        assert wanted <= set(wheel.namelist())
    assert "autoopt = autoopt.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_one_version_everywhere(project: dict[str, Any]) -> None:
    import autoopt

    assert autoopt.__version__ == project["version"]
    newest = re.search(r"^## \[(.+)\]", _read("CHANGELOG.md"), re.MULTILINE)
    assert newest[1] in ("Unreleased", project["version"]), "the changelog begins with what this version brings"


def test_all_brings_every_extra_but_those_for_development(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == set(extras) - {"all", "dev", "docs", "mutation", "release"}


def test_what_make_installs_is_pinned_and_within_the_ranges(project: dict[str, Any]) -> None:
    pinned = {}
    for line in _read("constraints.txt").splitlines():
        if not line.startswith("#"):
            name, separator, version = line.partition("==")
            assert separator, line
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line), f"{line}: a name and a version alone"
            pinned[canonicalize_name(name)] = version
    extras = ("examples", "dev", "tensorboard", "docs", "mutation", "release", "serving", "tune", "model")
    for text in _requirements(project, *extras):
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name == "torch-autoopt":
            continue
        assert name in pinned, f"{name} is not pinned"
        assert wanted.specifier.contains(pinned[name]), f"{name} {pinned[name]} is outside {wanted.specifier}"


def test_the_readme_names_targets_and_commands_that_exist() -> None:
    from autoopt.cli.group import COMMANDS

    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        text = _read(page)
        assert set(re.findall(r"(?:^|`)\s*make ([a-z-]+)", text, re.MULTILINE)) <= targets, page
        assert set(re.findall(r"(?:^|`)\s*(?:\$ )?autoopt ([a-z]+)\b", text, re.MULTILINE)) <= set(COMMANDS), page
    assert {"demo", "test"} <= set(re.findall(r"make ([a-z-]+)", _read("README.md")))


def test_make_help_lists_every_target_that_says_what_it_does() -> None:
    documented = re.findall(r"^([a-z-]+):.*?## ", _read("Makefile"), re.MULTILINE)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE) == documented
    assert {"venv", "install", "demo", "test", "test-all", "lint", "typecheck", "format", "gallery", "faults"} <= set(
        documented
    )


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^exec make test\b", script.read_text(encoding="utf-8"), re.MULTILINE)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _requirements(project: dict[str, Any], *extras: str) -> list[str]:
    named = [text for extra in extras for text in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *(text for text in named if not text.startswith("torch-autoopt["))]
