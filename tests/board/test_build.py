"""The page that is shipped is the one whose source is here, and it is small."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from stoker.board.app import STATIC
from support.pictures import DOCS, PICTURES

SOURCE = Path(__file__).parents[2] / "board"
PICTURE = re.compile(r"images/(board[\w-]*\.png)")


def test_every_picture_of_the_board_in_the_documentation_is_taken_by_a_test():
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    shown = {name for page in pages for name in PICTURE.findall(page.read_text("utf-8"))}
    assert shown == set(PICTURES), "add it to PICTURES, or show it; then run make pictures"
    for name in PICTURES:
        assert (DOCS / "images" / name).stat().st_size < 100_000, name


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_texts_and_curves_are_readable(theme):
    style = (SOURCE / "src" / "style.css").read_text()
    head = ":root {" if theme == "light" else ':root[data-theme="dark"] {'
    block = style.partition(head)[2].partition("}")[0]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    texts = ("ink", "faint", "accent", "good", "bad", "warn", "live")
    for ground in ("back", "card", "hover"):
        for name, colour in colours.items():
            least = 4.5 if name in texts else 3.0 if name.startswith("run-") else 0.0
            assert contrast(colour, colours[ground]) >= least, (name, ground)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_page_was_built_from_the_source_that_is_here():
    hash = hashlib.sha256()
    names = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "node_modules" not in path.parts
    }
    for name in sorted(names):
        hash.update(name.encode() + b"\0" + (SOURCE / name).read_bytes() + b"\0")
    recorded = (STATIC / "source.sha256").read_text().strip()
    assert recorded == hash.hexdigest(), "run make board, and commit what it builds"


def test_the_page_is_at_most_150_kb_on_the_wire():
    sent = sum(len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*.*"))
    assert sent <= 150_000


def test_the_page_names_no_address_but_its_own():
    for path in STATIC.rglob("*.*"):
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", path.read_text()))
        assert found <= {"http://www.w3.org"}, path


def test_nothing_a_run_says_is_read_as_html():
    for path in (SOURCE / "src").glob("*.ts"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write", path.read_text()
        )
