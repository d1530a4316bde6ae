"""Seconds of an evaluation under settings of its own loader, as ratios to the user's own settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from autoopt.setup import Setup


@dataclass
class EvaluationRatios:
    """Measured ratios: seconds of an evaluation under a setup over one under another, by the evaluation's options."""

    _known: dict[str, float] = field(default_factory=dict)

    def measured(self, setup: Setup, over: Setup, ratio: float) -> None:
        """Notes what was measured.

        Args:
            setup, over: of the two evaluations.
            ratio: seconds of the first over those of the second.
        """
        self._known[_key(setup)] = ratio * self._known.get(_key(over), 1.0)

    def ratio(self, setup: Setup, over: Setup) -> float | None:
        """Of an evaluation under one setup over one under another; None where it was not measured."""
        keys = _key(setup), _key(over)
        if keys[0] == keys[1]:
            return 1.0
        found = [self._known.get(key, 1.0 if key == _OWN else None) for key in keys]
        return None if found[0] is None or found[1] is None else found[0] / found[1]


def _key(setup: Setup) -> str:
    return json.dumps(dict(setup.evaluation), sort_keys=True, default=str)


_OWN = _key(Setup())
