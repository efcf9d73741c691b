"""The files of a checkpoint: manifest, state tree and tensors."""
