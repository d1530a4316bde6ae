"""The gauntlet: the share of an expert's speedup that a tool attains, what it finds where nothing is, and who else
does.

Rules are in ``RULES.md``. Each folder is a case; its placebo twin is the expert's script on a device that waits.
"""
