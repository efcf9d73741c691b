"""Whether the model is compiled, and by which backend of torch.compile."""

graph = {"enabled": True, "debug": -1, "backend": "inductor"}
