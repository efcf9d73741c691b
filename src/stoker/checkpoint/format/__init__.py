"""The format: names of files, the manifest, the state tree, and tensors as safetensors."""
