"""The user's ``build`` as a transform of a setup may hold it: by its import string, which is data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoopt.loading import importing


@dataclass(frozen=True)
class UserBuild:
    """The function that an import string names, imported where it is called; an exported script has it by its name.

    Args:
        spec: ``module:attribute`` or ``path/to/file.py:attribute``.
    """

    spec: str

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            WorkloadError: it cannot be imported.
        """
        found: Callable[..., Any] = importing.load(self.spec)
        return found

    def __call__(self, **arguments: Any) -> Any:
        """Its return value for these arguments, unchecked."""
        return self.function(**arguments)
