"""Whole runs: the patch of a run beside an expert's edit of the same script, judged from process start to end.

Each folder here is a case: ``train.py`` as people write it, ``expert.py`` as an expert rewrites it for the same
training, ``EXPERT.md`` with the edits and why. The scripts are frozen (``FROZEN.json``) before the first search.
Score of a patch: log(untouched / patched) over log(untouched / expert), seconds of whole runs.
"""
