"""The folder that is put on the path of a script's process: ``sitecustomize``, and what that loads by its file."""
