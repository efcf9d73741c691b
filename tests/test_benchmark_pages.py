"""The pages of benchmarks follow from the stored results."""

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import publish

    return publish


def table(publish, title, value, met):
    found = publish.Finding(f"How long is {title}", f"{value} s", "≤ 2 s", met)
    return publish.Table(title, "Seconds.", ["s"], [["Stoker", value]], "0.1 s", findings=[found])


def test_a_table_replaces_that_of_the_same_title_and_the_summary_has_all(
    publish, tmp_path, monkeypatch
):
    monkeypatch.setattr(publish, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(publish, "DOCS", tmp_path)
    publish.store("start", [table(publish, "Restart", "3", False)], "python a.py")
    publish.store("start", [table(publish, "Help", "1", True)], "python b.py")
    publish.store("start", [table(publish, "Restart", "4", False)], "python c.py")

    text = (tmp_path / "benchmarks" / "start.md").read_text()
    assert text.index("## Help") < text.index("## Restart")
    assert "python a.py" not in text
    assert "| **Stoker** | 4 |" in text
    assert "run `make bench-safety`" in (tmp_path / "benchmarks" / "safety.md").read_text()
    summary = (tmp_path / "benchmarks" / "index.md").read_text()
    assert "| [How long is Help](start.md) | 1 s | ≤ 2 s | met |" in summary
    assert "| [How long is Restart](start.md) | 4 s | ≤ 2 s | **missed** |" in summary


def test_the_pages_are_those_of_the_stored_results(publish):
    folder = ROOT / "docs" / "benchmarks"
    assert {path.stem for path in publish.RESULTS.glob("*.json")} <= set(publish.PAGES)
    assert (folder / "index.md").read_text() == publish.summary()
    for page in publish.PAGES.values():
        if page.intro:  # benchmarks/peers writes the others
            assert (folder / f"{page.name}.md").read_text() == publish.text_of(page)


def test_the_summary_fits_a_screen(publish):
    assert len(publish.summary().splitlines()) <= 60
