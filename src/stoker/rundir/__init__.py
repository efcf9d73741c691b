"""The files of a run: their names, the folder, and where the run came from."""
