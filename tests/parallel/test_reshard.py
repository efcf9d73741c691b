"""Every layout resumes what every other has saved: the matrix of layouts, tied and untied.

``make reshard`` runs all pairs, which takes some minutes. Otherwise a seeded sample of them runs.
"""

import functools
import os
import random
from itertools import product
from pathlib import Path

import pytest

from stoker import Layout
from support.pool import pool
from support.tasks import reshard

LAYOUTS = {
    "one": None,
    "re2": Layout(replicate=2),
    "sh2": Layout(shard=2),
    "te2": Layout(tensor=2),
    "pi2": Layout(pipeline=2),
    "in2": Layout(pipeline=2, schedule="interleaved"),
    "re4": Layout(replicate=4),
    "sh4": Layout(shard=4),
    "te4": Layout(tensor=4),
    "pi4": Layout(pipeline=4),
    "re2×sh2": Layout(replicate=2, shard=2),
    "re2×te2": Layout(replicate=2, tensor=2),
    "sh2×te2": Layout(shard=2, tensor=2),
    "co2": Layout(context=2),
    "re2×co2": Layout(replicate=2, context=2),
    "co2×sh2": Layout(context=2, shard=2),
    "co2×te2": Layout(context=2, tensor=2),
    "pi2×re2": Layout(pipeline=2, replicate=2),
    "pi2×sh2": Layout(pipeline=2, shard=2),
    "pi2×te2": Layout(pipeline=2, tensor=2),
}
PAIRS = list(product(LAYOUTS, LAYOUTS))
ALWAYS = [("pi2", "sh2"), ("pi2", "te2"), ("one", "pi2×sh2"), ("pi2×te2", "one")]
ALL = bool(os.environ.get("STOKER_RESHARD"))
SAMPLED = {
    True: PAIRS if ALL else [*ALWAYS, *random.Random(16).sample(PAIRS, 3)],
    False: PAIRS if ALL else random.Random(17).sample(PAIRS, 3),
}
DOCS = Path(__file__).parents[2] / "docs" / "choosing-a-layout.md"


def run(layout, task, *args):
    if layout is None:
        return [task(None, *args)]
    return pool().run(layout.processes, task, layout, *args)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that trains in a layout, once; the folder, and the samples that were read."""

    @functools.cache
    def save(tied, name):
        folder = tmp_path_factory.mktemp("saved") / name
        return folder, run(LAYOUTS[name], reshard.saved_in, tied, folder)[0]

    return save


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tied", "target"),
    [(tied, to) for tied in SAMPLED for to in LAYOUTS if to in dict(map(reversed, SAMPLED[tied]))],
    ids=lambda value: {True: "tied", False: "untied"}.get(value, value),
)
def test_a_layout_resumes_what_others_saved(saved, tied, target):
    sources = sorted({source for source, to in SAMPLED[tied] if to == target})
    folders = [saved(tied, source)[0] for source in sources]
    found = run(LAYOUTS[target], reshard.resumed_from, tied, folders)
    for number, source in enumerate(sources):
        case = f"{source} → {target}"
        assert [one[number][0] for one in found] == [[]] * len(found), case
        folder, read_before = saved(tied, source)
        _, read, losses = found[0][number]
        seen = sorted(row for step in (*read_before, *read) for row in step)
        assert seen == list(range(reshard.SAMPLES)), case
        right = reshard.losses_in_one_process(folder, tied, read)
        assert losses == pytest.approx(right, abs=1e-10), case


def table():
    """The layouts of the matrix as the documentation lists them."""
    names = {1: [], 2: [], 4: []}
    for name, layout in LAYOUTS.items():
        names[layout.processes if layout else 1].append(name)
    rows = [f"| {count} | {', '.join(of_count)} |" for count, of_count in names.items()]
    return "\n".join(["| processes | layouts |", "|---|---|", *rows])


def test_the_documentation_lists_the_layouts():
    assert table() in DOCS.read_text()


def test_the_matrix_has_every_combination_of_two_and_four_processes():
    sizes = ("replicate", "shard", "tensor", "pipeline", "context")
    possible = set()
    for values in product((1, 2, 4), repeat=5):
        try:
            layout = Layout(**dict(zip(sizes, values, strict=True)))
        except ValueError:
            continue
        if layout.processes in (1, 2, 4) and layout.context < 4:  # a window has 6 tokens
            possible.add(str(layout))
    assert possible == {str(layout or Layout()) for layout in LAYOUTS.values()}
