"""``stoker ckpt``: inspect checkpoints, and move weights in and out."""
