"""Logical ranks: the arithmetic of a step for a fixed number of ranks, on any number of processes.

tree.py       the fixed order in which values of logical ranks are added
reducer.py    gradients, added in that order in the traffic of an all-reduce
buffers.py    buffers, such as the running statistics of BatchNorm
outputs.py    losses and outputs of all logical ranks, on every process
norms.py      norms of gradients, the same for shards
model.py      `LogicalModel`: a model as one process runs its logical ranks
sharded.py    `ShardedLogicalModel`: the same, with the optimizer in shards
"""
