"""Beside the rivals: training scripts that exist elsewhere, as they are, and what each tool makes of them.

``python -m benchmarks.peers fetch`` brings the scripts at their revisions (nothing of them is kept in this repository);
``search WORKLOAD RIVAL`` lets one tool work for the budget; ``judge WORKLOAD`` measures what came out of all of them;
``collect`` writes ``benchmarks/results/peers.json``.
Each call measures one thing and writes it down, and none is made twice.

The rules, fixed before anything was measured:

1. The script is untouched: its own files at the revision, run with its own options. Where its data cannot be had
   without a network, data of the same form is put where it looks for them (``data.py``); where its repository cannot be
   had, a script in ``wrappers/`` does what its documentation shows.
2. Every rival runs as its own documentation says, with its own defaults, for the same wall-clock budget; when that is
   over it is stopped, and what it had written by then is its result. What it cannot run is written as such.
3. The judge is a clock of nobody's: a ``sitecustomize`` that notes the time at each step of the first optimizer. The
   untouched script and each result run as fresh processes in turn, in an order that rotates, for the same number of
   steps. Time in evaluation is taken off; waiting for data, epochs' ends and the loader's start are not.
4. A result is as good if the mean loss over these steps is within 5 % of the untouched script's, or within the range of
   the untouched script's own runs; else its speed does not count.
5. A tool that changes nothing has the ratio 1, and is not measured. Ratios are seconds of the untouched script over
   seconds of the result, in the same round; the interval is Student's over the rounds' logarithms.
6. A tool may search again at a later revision (``search --again``); the document keeps its earlier results.
7. Steps that come before the clock counts (start, compilation) are told apart as seconds until then.
"""
