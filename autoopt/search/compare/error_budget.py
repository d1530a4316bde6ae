"""The error budget of a run: the chance that anything is kept that does nothing, over all of its candidates.

Each comparison carries an e-value, the likelihood ratio of its sequential test; testing it against ``alpha_t`` is
asking it to exceed ``1 / alpha_t``. Levels follow e-LOND (Xu and Ramdas, "Online multiple testing with e-values",
AISTATS 2024), the online form of e-BH: the share of false ones among what is kept stays below ``ALPHA`` in expectation,
whatever the dependence, and so does the chance of keeping any where nothing works.
"""

from __future__ import annotations

ALPHA = 0.05
"""The chance of the whole run."""


def alpha_of(tested: int, kept: int) -> float:
    """The level at which the next candidate is kept.

    Args:
        tested: candidates that were put to confirmation before it.
        kept: those of them that were kept.
    """
    number = tested + 1
    return ALPHA * (kept + 1) / (number * (number + 1))
