"""The words that the code, the docs and the examples use are those of the field.

    python tests/test_vocabulary.py [FILE OR FOLDER …]

prints each place that uses another one.
"""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ["src", "docs", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
TEXT = {".py", ".pyi", ".md", ".yaml", ".yml", ".toml"}

# A space stands for any space or "_", so that an entry holds for prose and for snake_case names.
WORDS = {
    "anew": "again, from scratch",
    "(go|goes|going|gone|went) on": "resume, continue",
    "in hand": "current",
    "whole": "complete, entire, unsharded; a whole number is an integer",
    "in words": "with a clear error",
    "said": "logged, reported, shown",
    "told": "logged, reported; given",
    "tells": "reports, shows",
    "(a|one|the) word (to|from|about)": "a notification, a message",
    "(a|an|the|one|each|every|no|last|next|first|of|per) looks?": "a validation",
    "before look": "before_eval",
    "keeps? (the others |others )?company": "padding batch",
    "idle batch(es)?": "padding batch",
    "beside (the training|training|others|other trainers)": "in the background; compared with",
    "what a run is": "the complete state of the run",
    "everything (the|a) run is": "the complete state of the run",
    "ones? own": "your own",
    "taken down": "captured",
    "put back": "restored",
    "alike": "the same",
    "wish(es|ed)?": "request",
    "asked": "requested",
    "granted": "request",
    "took": "seconds; on_output",
    "judged": "compute_loss",
    "says weight": "has_weight",
    "of_model": "replicated_state",
    "keepers?": "CheckpointManager",
    "came_from": "origin",
    "unrecorded": "optimizer_fast_path",
    "uncompiled": "defer_dynamo",
    "assembled?": "build_job",
    "lent": "broadcast_object",
    "from_main": "broadcast_from_rank0",
}

# Names of classes that have conventional names now.
NAMES = [
    "Arrangement",
    "Camera",
    "Cut",
    "Divided",
    "Exchange",
    "Feed",
    "Keeper",
    "Look",
    "Mark",
    "Numbers",
    "Part",
    "Past",
    "Peers",
    "Place",
    "Seek[A-Z]?[a-z]*",
    "Share",
    "Together",
]


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    gap = r"[\s_]+"
    prose = {
        word: re.compile(rf"(?<![A-Za-z]){word.replace(' ', gap)}(?![A-Za-z])", re.IGNORECASE)
        for word in WORDS
    }
    classes = {f"class {name}": re.compile(rf"^\s*class {name}\b", re.MULTILINE) for name in NAMES}
    return prose | classes


def files(places: list[Path]) -> list[Path]:
    found = [p for place in places for p in ([place] if place.is_file() else place.rglob("*"))]
    return sorted(p for p in found if p.suffix in TEXT and "__pycache__" not in p.parts)


def violations(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = []
    for word, pattern in patterns().items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            instead = WORDS.get(word, "the name in the table of concepts")
            found.append(f"{path}:{line}: {match.group()!r}: write {instead}")
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", files([ROOT / place for place in PLACES]), ids=relative)
def test_the_words_are_those_of_the_field(path):
    assert violations(path) == []


def test_the_names_of_tests_are_in_the_words_of_the_field():
    tests = (ROOT / "tests").rglob("test_*.py")
    names = "\n".join(
        name for file in tests for name in re.findall(r"def (test_\w+)", file.read_text())
    )
    found = [match.group() for word in WORDS for match in patterns()[word].finditer(names)]
    assert found == []


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]] or [ROOT / place for place in PLACES]
    for problem in (problem for file in files(given) for problem in violations(file)):
        print(problem)
