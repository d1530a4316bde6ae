"""From a plan to something usable: a plain script, arguments of other trainers, lines to paste, a diff."""
