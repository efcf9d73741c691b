"""The documentation builds as a complete site that needs no network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site strictly: pages missing from the navigation and broken links are errors."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_there_and_the_reference_has_what_is_public(site):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
    trainer = (site / "api" / "trainer-run-step.html").read_text("utf-8")
    assert 'id="stoker.trainer.Trainer.fit"' in trainer
    hooks = (site / "api" / "hooks.html").read_text("utf-8")
    assert 'id="stoker.hooks.checkpoint.Checkpoint"' in hooks


def test_blocks_are_shown_as_code_whatever_their_fences_say(site):
    for page in site.glob("*.html"):
        assert "```" not in page.read_text("utf-8"), page.name


def test_a_reader_needs_no_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'(?:src|href)="(https?:[^"]*\.(?:js|css|woff2?|png|svg)[^"]*)"',
            page.read_text("utf-8"),
        )
        assert loaded == [], page.name


def test_examples_that_pages_link_to_are_on_the_site(site):
    assert (site / "examples" / "digits.yaml").read_text() == (
        ROOT / "examples" / "digits.yaml"
    ).read_text()


def test_every_page_is_in_the_navigation():
    _, _, navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")
    listed = re.findall(r"^ +- ([\w-]+\.md)$", navigation, flags=re.MULTILINE)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(pages | {"changelog.md"})


def test_the_search_works_when_the_site_is_opened_as_a_file(site):
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "this test needs Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        loaded: list[str] = []
        page.on("request", lambda request: loaded.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").click()
        page.keyboard.type("EarlyStopping")
        results = page.locator(".md-search-result__item")
        expect(results.first).to_contain_text("EarlyStopping", timeout=60_000)
        assert [url for url in loaded if not url.startswith("file:")] == []
        browser.close()
