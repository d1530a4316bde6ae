"""The folder that is put on the path of a script's process; it holds ``sitecustomize`` alone."""
