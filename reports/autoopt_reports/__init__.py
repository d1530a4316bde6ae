"""Result -> HTML and terminal. Imports the records and events alone; never torch."""
