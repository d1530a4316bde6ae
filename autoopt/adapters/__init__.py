"""Objects of Lightning and transformers as workloads; neither library is imported unless the user has."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from autoopt.workload import Workload

_OF = {
    **{
        (package, name): "lightning"
        for package in ("lightning", "pytorch_lightning")
        for name in ("LightningModule", "LightningDataModule", "Trainer")
    },
    ("transformers", "Trainer"): "transformers",
}


def adapt(made: Any) -> Workload | None:
    """The object that ``build()`` returned as a workload.

    Args:
        made: a ``LightningModule``, alone or in a tuple with a ``LightningDataModule`` and a ``Trainer``,
            or a ``transformers.Trainer``.

    Returns:
        None where it is none of them.

    Raises:
        WorkloadError: it trains in a way that has no equivalent workload; says which.
    """
    kind = adapter_of(made)
    if kind is None:
        return None
    workload: Workload = importlib.import_module(f"autoopt.adapters.{kind}").workload(made)
    return workload


def adapter_of(made: Any) -> str | None:
    """Which adapter takes an object; known from the names of its classes."""
    items: Iterable[Any] = made if isinstance(made, (tuple, list)) else (made,)
    for item in items:
        for cls in type(item).__mro__:
            found = _OF.get((cls.__module__.partition(".")[0], cls.__name__))
            if found is not None:
                return found
    return None
