"""Settings of all tests: one thread of arithmetic, and property tests that do not depend on the machine's speed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tests of logic must not spin on two cores

import pytest
from hypothesis import HealthCheck, settings

with contextlib.suppress(ImportError):  # so that the fixture below knows Pillow's own `open`
    import PIL.Image  # noqa: F401

if TYPE_CHECKING:
    from autoopt.trial.parent import Launcher

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # by what has started the tests, such as nohup
        signal.signal(number, usual)

settings.register_profile(
    "steady", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """One fork server for all tests that start trials: what imports torch anew takes seconds."""
    from autoopt.trial.parent import Launcher

    with Launcher() as launcher:
        yield launcher


@pytest.fixture(autouse=True, scope="module")
def _libraries_are_not_looked_through() -> None:
    """A trial collects garbage as it ends; here it shares its process with all that the tests have imported."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # which the first optimizer would import
    gc.collect()
    gc.freeze()


@pytest.fixture
def their_warnings() -> Iterator[None]:
    """Leaves the warnings of other libraries alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def _products_are_as_precise_as_ever() -> Iterator[None]:
    """Strategies and trials set the precision of a process; what comes after in this one is compared bit by bit."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True)
def _images_open_as_ever() -> Iterator[None]:
    """Strategies wrap ``PIL.Image.open`` for good in their process; here tests that run strategies share one."""
    image = sys.modules.get("PIL.Image")
    opened = getattr(image, "open", None)
    yield
    if image is not None:
        image.open = opened  # type: ignore[attr-defined]
