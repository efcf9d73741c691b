"""The fixed tree in which the values of logical ranks are added.

A node is a range ``(begin, end)`` of logical ranks. It is split at the largest power of two below
its size, so that 8 ranks form a balanced tree, and 6 ranks one of 4 and one of 2. A process holds
consecutive ranks. It adds those that form complete nodes, and no others.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Node: TypeAlias = tuple[int, int]
T = TypeVar("T")


def ranks_of(process: int, processes: int, total: int) -> range:
    """Return the logical ranks that a process executes."""
    return range(process * total // processes, (process + 1) * total // processes)


def split(node: Node) -> int:
    """Return where a node of at least two ranks is split."""
    begin, end = node
    return begin + (1 << (end - begin - 1).bit_length() - 1)


def complete_nodes(ranks: range, total: int) -> list[Node]:
    """Return the largest nodes that lie within these ranks, in order."""

    def within(node: Node) -> list[Node]:
        begin, end = node
        if ranks.start <= begin and end <= ranks.stop:
            return [node]
        if end <= ranks.start or ranks.stop <= begin:
            return []
        middle = split(node)
        return within((begin, middle)) + within((middle, end))

    return within((0, total))


def is_node(begin: int, end: int, total: int) -> bool:
    """Return whether a range of logical ranks is a node of the tree."""
    node = (0, total)
    while node != (begin, end):
        if node[1] - node[0] == 1:
            return False
        middle = split(node)
        node = (node[0], middle) if end <= middle else (middle, node[1])
        if not node[0] <= begin < end <= node[1]:
            return False
    return True


def finish(values: Mapping[Node, T], total: int, add: Callable[[T, T], T]) -> T:
    """Add the values of nodes that cover all ranks, in the order of the tree."""

    def value(node: Node) -> T:
        if node in values:
            return values[node]
        middle = split(node)
        return add(value((node[0], middle)), value((middle, node[1])))

    return value((0, total))
