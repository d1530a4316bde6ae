"""Where the ceiling is: stages measured alone, peaks of the machine, the pipeline graph, and what lies deeper."""
