"""Trials as processes: started from a preloaded server, asked over a private pipe, killed as a whole tree."""
