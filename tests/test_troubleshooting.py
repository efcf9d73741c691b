"""The messages that the page of symptoms quotes are those of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
FENCED = re.compile(r"^```console\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
QUOTED = [line for block in FENCED.findall(PAGE.read_text("utf-8")) for line in block.splitlines()]


@cache
def messages_in_source() -> list[list[str]]:
    """Return each string of the source as its literal parts, without what is filled in."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [one.value for one in node.values if isinstance(one, ast.Constant)]
                found.append([str(one) for one in parts])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append([node.value])
    return found


def is_message(quoted: str, parts: list[str]) -> bool:
    """Return whether the words between "…" are, in this order, those of one message."""
    words, text = [one for one in quoted.split("…") if one.strip(" .,:;'()")], "\0".join(parts)
    at = 0
    for one in words:
        found = text.find(one.strip(), at)
        if found < 0:
            return False
        at = found + len(one.strip())
    return True


def test_the_page_quotes_many_messages() -> None:
    assert len(QUOTED) > 25


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda line: line[:40])
def test_a_quoted_message_is_in_the_source(quoted: str) -> None:
    assert any(is_message(quoted, parts) for parts in messages_in_source())


def test_a_message_that_nothing_prints_is_noticed() -> None:
    invented = "… is another run: …. This one goes nowhere"
    assert not any(is_message(invented, parts) for parts in messages_in_source())
