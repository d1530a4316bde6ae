"""How exported results fare: scripts, and the Trainers' own loops."""
