"""Peers: training scripts that exist elsewhere, as they are, and what each tool makes of them.

The rules are the gauntlet's (``benchmarks/gauntlet/RULES.md``), with these differences. A script is its own files at
the revision, run with its own options, for a length that it can be told. Where its data cannot be had without a
network, data of the same form are put where it looks for them (``data.py``); where its repository cannot be had, a
script in ``wrappers/`` does what its documentation shows. There is no expert and no target: a result is as good if
its final metric is within the tolerance of the untouched script's.
"""
