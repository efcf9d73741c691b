"""The page that is shipped is the one whose source is here, and it is small."""

import gzip
import hashlib
import re
from pathlib import Path

from stoker.board.app import STATIC

SOURCE = Path(__file__).parents[2] / "board"


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
