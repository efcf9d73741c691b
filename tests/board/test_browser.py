"""The board and the report in a real browser, as a person uses them.

Screenshots are left in build/board/. ``make pictures`` also writes those in PICTURES to
docs/images/.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import torch
from playwright.sync_api import Browser, Page, expect, sync_playwright

from stoker.events import log_image, log_text
from stoker.report.output import write_report
from support.board_gallery import (
    LONG_NAME,
    MANY_METRICS,
    ODD_NAME,
    make_gallery,
    restarted,
    simple_run,
)
from support.board_runs import make_checkpoint, make_run, rows, served
from support.pictures import PICTURES, save_picture

expect.set_options(timeout=180_000)  # a hang limit: nothing here depends on time

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "board"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    slow = make_run(root, "slow", 40, "optimizer: {lr: 0.1}\nrun: {epochs: 4}\n")
    make_run(root, "fast", 60, "optimizer: {lr: 0.4, _target_: SGD}\nrun: {epochs: 6}\n")
    make_checkpoint(slow, 40)
    (slow / "cost.json").write_text('{"breakdown": {"forward": 0.004}, "hooks": {"LR": 1e-6}}')
    log_image(slow, "sample", torch.rand(8, 8), 40)
    log_text(slow, "answer", "forty two", 40)
    return root


@pytest.fixture(scope="module")
def board(root):
    with served(root) as found:
        yield found


class Watched:
    """A page; what it asked for, and what went wrong in it."""

    def __init__(self, browser: Browser, address: str, **look: object) -> None:
        self.address, self.asked, self.wrong = address, [], []
        look = {"viewport": {"width": 1280, "height": 900}} | look
        self.context = browser.new_context(**look)
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        self.page.goto(address)
        expect(self.page.locator(".line-state")).to_have_text("live")

    def _hear(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith(self.address)] == []


@pytest.fixture
def watched(browser, board):
    found = Watched(browser, board.address, color_scheme="light")
    expect(chart(found.page, "train/loss")).to_have_attribute("data-points", "100")
    yield found
    found.close()


@pytest.fixture
def page(watched):
    return watched.page


def chart(page: Page, name: str):
    return page.locator(f'figure[data-name="{name}"]')


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def test_points_arrive_while_a_run_trains_until_it_is_preempted(browser, tmp_path):
    command = [sys.executable, "-m", "stoker", "train", str(ROOT / "examples" / "digits.yaml"),
               "run.log_every=2", "run.epochs=1000", f"run.dir={tmp_path / 'runs'}"]  # fmt: skip
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs") as board, ExitStack() as at_the_end:
        watched = Watched(browser, board.address)
        page = watched.page
        expect(page.get_by_text("No runs yet")).to_be_visible()
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        at_the_end.callback(process.wait)
        at_the_end.callback(process.kill)
        run = page.locator('li[data-run="digits"]')
        expect(run.locator(".state")).to_have_text("running")
        drawn = chart(page, "train/loss")
        expect(drawn).to_have_attribute("data-points", re.compile(r"\d+"))
        first = int(drawn.get_attribute("data-points") or 0)
        page.wait_for_function(
            "n => Number(document.querySelector('figure[data-name=\"train/loss\"]')"
            ".dataset.points) > n + 10",
            arg=first,
        )
        expect(run.locator(".seen")).to_contain_text("left")
        shoot(page, "training")
        process.terminate()
        assert process.wait() == 143
        expect(run.locator(".state")).to_have_text("preempted")
        expect(run.locator(".steps")).to_have_text(re.compile(r"\d+/45000"))
        watched.close()


def test_two_runs_are_drawn_over_each_other_and_their_configs_compared(page):
    expect(chart(page, "train/loss").locator(".reading-row")).to_have_count(2)
    page.get_by_label("draw slow").uncheck()
    expect(chart(page, "train/loss").locator(".reading-row")).to_have_count(1)
    page.get_by_label("draw slow").check()
    expect(chart(page, "train/loss").locator(".reading-row")).to_have_count(2)
    shoot(page, "charts")
    page.get_by_role("button", name="compare").click()
    table = page.locator("table.diff")
    expect(table.get_by_role("row", name="optimizer.lr")).to_contain_text("0.4")
    accuracy = table.get_by_role("row", name="val/accuracy").locator("td")
    expect(accuracy.nth(0)).to_have_text("0.98333step 60 · last 0.98333")
    expect(accuracy.nth(0)).to_have_class("number leads")
    expect(accuracy.nth(1)).to_have_class("number")
    expect(table.get_by_role("row", name="steps")).to_contain_text("60")
    expect(table.locator("tr.group")).to_have_text(
        ["Progress", "Results: best, last", "Speed and memory: last", "Settings that differ"]
    )
    shoot(page, "compare")


def test_a_drag_zooms_all_charts_and_show_all_goes_back(page):
    box = chart(page, "train/loss").locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
    with page.expect_response(re.compile(r"/api/series\?.*from=")) as zoomed:
        page.mouse.up()
    asked = parse_qs(urlsplit(zoomed.value.url).query)
    assert 25 < float(asked["from"][0]) < float(asked["to"][0]) < 50
    expect(page.locator("#reset")).to_be_visible()
    expect(chart(page, "train/loss")).not_to_have_attribute("data-points", "100")
    page.locator("#reset").click()
    expect(chart(page, "train/loss")).to_have_attribute("data-points", "100")
    expect(page.locator("#reset")).to_be_hidden()


def test_axis_smoothing_and_scale_are_chosen_and_stay_in_the_address(page):
    with page.expect_response(re.compile(r"/api/series\?.*x=epoch")):
        page.locator("#axis").select_option("epoch")
    page.locator("#smooth").fill("0.6")
    page.locator("#log").check()
    expect(chart(page, "train/loss").locator("canvas")).to_be_visible()
    page.reload()
    assert page.locator("#axis").input_value() == "epoch"
    assert page.locator("#smooth").input_value() == "0.6"
    expect(page.locator("#log")).to_be_checked()
    with page.expect_response(re.compile(r"/api/series\?.*x=time")):
        page.locator("#axis").select_option("time")
    shoot(page, "smooth")


def test_dark_and_light_can_be_switched_and_are_remembered(page):
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert ground() != light
    page.reload()
    assert ground() != light
    expect(chart(page, "train/loss").locator("canvas")).to_be_visible()
    shoot(page, "dark")


def test_everything_can_be_done_by_keys(page):
    runs = page.locator("ul.runs li")
    page.keyboard.press("/")
    page.keyboard.type("fas")
    expect(runs).to_have_count(1)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Escape")
    expect(runs).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(runs.nth(1)).to_have_class(re.compile("focus"))
    page.keyboard.press("Space")
    expect(runs.nth(1)).not_to_have_class(re.compile("chosen"))
    page.keyboard.press("Space")
    for key, tab in enumerate(("charts", "table", "compare", "run", "log", "media"), 1):
        page.keyboard.press(str(key))
        expect(page.locator(f'[data-tab="{tab}"].tab')).to_have_attribute("aria-current", "page")
    page.keyboard.press("1")
    page.keyboard.press("l")
    expect(page.locator("#log")).to_be_checked()
    page.keyboard.press("x")
    assert page.locator("#axis").input_value() == "samples"
    expect(chart(page, "train/loss")).to_have_attribute("data-axis", "samples")
    chart(page, "train/loss").focus()
    with page.expect_response(re.compile("from=")):
        page.keyboard.press("+")
    page.keyboard.press("r")
    expect(page.locator("#reset")).to_be_hidden()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_the_table_sorts_by_a_result_and_by_a_setting(page):
    page.keyboard.press("2")
    first = page.locator("table tbody tr").first
    page.locator('[data-sort="best val/accuracy"]').click()
    expect(first).to_contain_text("fast")
    page.locator('[data-sort="best val/accuracy"]').click()
    expect(first).to_contain_text("slow")
    page.locator('[data-sort="optimizer.lr"]').click()
    expect(first).to_contain_text("slow")
    shoot(page, "table")


def test_a_run_shows_its_costs_and_its_checkpoints_which_can_be_verified(page):
    page.keyboard.press("4")
    page.locator('li[data-run="slow"] .open').click()
    expect(page.locator(".run-page")).to_contain_text("forward")
    expect(page.locator(".check")).to_have_text("sizes match")
    page.get_by_role("button", name="verify").click()
    expect(page.locator(".check")).to_have_text("verified")
    expect(page.locator(".run-page")).to_contain_text("optimizer.lr")
    shoot(page, "run")


def test_images_and_texts_of_a_run_are_shown(page):
    page.locator('li[data-run="slow"] .open').click()
    page.keyboard.press("6")
    expect(page.locator(".media pre")).to_have_text("forty two")
    expect(page.locator(".media img")).to_have_js_property("naturalWidth", 8)


def test_an_image_is_enlarged_by_a_click_and_by_keys(page):
    page.locator('li[data-run="slow"] .open').click()
    page.keyboard.press("6")
    page.get_by_role("button", name="enlarge sample, step 40").click()
    zoom = page.locator("dialog.zoom")
    expect(zoom).to_be_visible()
    expect(zoom).to_have_attribute("data-scale", re.compile(r"\d+"))
    fits = float(zoom.get_attribute("data-scale"))
    assert fits > 50  # eight pixels fill the window
    page.keyboard.press("-")
    expect(zoom).not_to_have_attribute("data-scale", f"{fits:g}")
    assert float(zoom.get_attribute("data-scale")) == pytest.approx(fits / 2, abs=0.01)
    page.keyboard.press("Escape")
    expect(zoom).to_be_hidden()


def test_a_page_with_the_token_is_let_in(browser, root):
    with served(root, token="secret") as board:
        context = browser.new_context()
        page = context.new_page()
        assert page.goto(board.address).status == 403
        page.goto(f"{board.address}?token=secret")
        expect(page.locator(".line-state")).to_have_text("live")
        assert "secret" not in page.url
        context.close()


def test_the_log_follows_what_is_written(page, root):
    page.keyboard.press("5")
    page.locator('li[data-run="fast"] .open').click()
    expect(page.locator(".log")).to_contain_text("epoch 6/2")
    with (root / "fast" / "log.txt").open("a") as out:
        out.write("2026-01-01 00:00:01 WARNING something new\n")
    expect(page.locator(".log .warning")).to_have_text(re.compile("something new"))


def test_what_a_run_says_is_shown_as_text_and_never_run(browser, tmp_path):
    folder = make_run(tmp_path, HOSTILE, config=f"a: '{HOSTILE}'\n'{HOSTILE}': 1\n")
    line = {"step": 21, "epoch": 2, "samples": 1, "time": 1.0, HOSTILE: 1.0}
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(json.dumps(line) + "\n")
    with (folder / "log.txt").open("a") as out:
        out.write(f"2026-01-01 00:00:00 ERROR {HOSTILE}\n")
    text = {
        "step": 1,
        "name": HOSTILE,
        "kind": "text",
        "text": f"{HOSTILE}<script>alert(2)</script>",
    }
    (folder / "media.jsonl").write_text(json.dumps(text) + "\n")
    make_run(tmp_path, "a&amp;b", config=f"a: '{HOSTILE}2'")
    with served(tmp_path) as board:
        watched = Watched(browser, board.address)
        page = watched.page
        expect(chart(page, HOSTILE)).to_be_visible()
        expect(page.locator("ul.runs")).to_contain_text("a&amp;b")
        for key in "123456":
            page.keyboard.press(key)
            page.locator("ul.runs .open", has_text=HOSTILE).click()
            expect(page.locator("#main")).to_contain_text(HOSTILE)
            assert page.locator('img[src="x"]').count() == 0
            assert page.locator("#main script").count() == 0
        shoot(page, "hostile")
        watched.close()


# Runs of every kind, at every width


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    root = make_gallery(tmp_path_factory.mktemp("gallery"))
    log_image(root / "restarted twice", "samples", torch.rand(3, 8, 16), 300)
    with served(root) as found:
        yield found


def view_of(tab: str, *runs: str, **more: str) -> str:
    chosen = [("run", run) for run in runs]
    return "#" + urlencode([*chosen, ("focus", runs[0]), ("tab", tab), *more.items()])


def open_view(page: Page, address: str, tab: str, *runs: str, **more: str) -> None:
    page.goto("about:blank")
    page.goto(address + view_of(tab, *runs, **more))
    expect(page.locator(".line-state")).to_have_text("live")


def spill(page: Page) -> list[str]:
    """Return the texts that reach beyond the window and that nothing scrolls or shortens."""
    return page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((one) => {
          const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
          const box = one.getBoundingClientRect();
          if (!own || !box.width || box.right <= innerWidth + 1) return false;
          return !one.closest(".scroll, .tabs, .log, dialog, .skip, .u-over");
        }).map((one) => one.textContent.slice(0, 60))"""
    )


VIEWS = {
    "charts": ("restarted twice", "still running", ODD_NAME, "without metrics", "diverged"),
    "table": ("restarted twice", LONG_NAME),
    "compare": ("restarted twice", ODD_NAME, LONG_NAME, "diverged", "without metrics"),
    "run": ("restarted twice",),
    "log": (LONG_NAME,),
    "media": ("restarted twice",),
}
SHOWN = {
    "charts": 'figure[data-name="val/loss"] canvas',
    "table": "table.wide tbody tr",
    "compare": "tr.group",
    "run": ".timeline",
    "log": ".log .info, .log div",
    "media": ".media img",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (360, 740)], ids=["desktop", "phone"])
def test_every_view_fits_the_window(browser, gallery, size, scheme):
    width, height = size
    watched = Watched(
        browser, gallery.address, color_scheme=scheme, viewport={"width": width, "height": height}
    )
    page = watched.page
    for tab, runs in VIEWS.items():
        open_view(page, gallery.address, tab, *runs)
        expect(page.locator(SHOWN[tab]).first).to_be_visible()
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, tab
        assert spill(page) == [], tab
        shoot(page, f"{tab}-{width}-{scheme}")
    watched.close()


def test_states_and_reasons_of_all_kinds_of_runs_are_listed(browser, gallery):
    watched = Watched(browser, gallery.address)
    expected = {
        ODD_NAME: ("stopped", "500/600"),
        "pruned trial": ("stopped", "100/600"),
        "restarted twice": ("finished", "600/600"),
        "diverged": ("failed", "300/300"),
        "killed": ("dead", "200/600"),
        "without metrics": ("finished", "100/100"),
    }
    for name, (state, steps) in expected.items():
        run = watched.page.locator("ul.runs li").filter(
            has=watched.page.get_by_text(name, exact=True)
        )
        expect(run.locator(".state")).to_have_text(state)
        expect(run.locator(".steps")).to_have_text(steps)
    expect(watched.page.locator("ul.runs")).to_contain_text("pruned at val/loss 1.7")
    watched.close()


def test_charts_are_grouped_by_prefix_and_filtered(browser, gallery):
    watched = Watched(browser, gallery.address)
    page = watched.page
    open_view(page, gallery.address, "charts", "detector")
    groups = page.locator("details.group")
    expect(groups.first.locator("h2")).to_have_text("val/coco/mAP")
    expect(page.locator("figure")).to_have_count(len(MANY_METRICS))
    closed = page.locator("details.group:not([open])")
    assert closed.count() > 5
    closed.first.locator("summary").click()
    page.locator("#filter").fill("recall/small")
    expect(page.locator("figure")).to_have_count(3)
    page.locator("#filter").fill("nothing of this kind")
    expect(page.get_by_text("No chart has this in its name.")).to_be_visible()
    page.locator("#filter").fill("")
    expect(page.locator("figure")).to_have_count(len(MANY_METRICS))
    watched.close()


def test_charts_have_titles_on_their_axes_and_marks_for_events(browser, gallery):
    watched = Watched(browser, gallery.address)
    page = watched.page
    open_view(page, gallery.address, "charts", "restarted twice")
    loss = chart(page, "train/loss")
    expect(loss.locator(".u-axis")).to_have_count(2)
    expect(loss).to_have_attribute("data-events", "5")
    expect(loss).to_have_attribute("data-titles", "step, loss")
    title = loss.locator(".canvas").get_attribute("title")
    assert "restarted twice: rollback at step 200" in title
    page.locator("#axis").select_option("time")
    chart(page, "samples/s").scroll_into_view_if_needed()
    expect(chart(page, "samples/s")).to_have_attribute(
        "data-titles", "time since the first row, samples per second"
    )
    open_view(page, gallery.address, "charts", "diverged")
    expect(chart(page, "val/odd")).to_contain_text("no finite values")
    watched.close()


def test_the_first_column_stays_while_a_table_scrolls(browser, gallery):
    watched = Watched(browser, gallery.address, viewport={"width": 360, "height": 740})
    page = watched.page
    open_view(page, gallery.address, "table", ODD_NAME)
    box = page.locator(".scroll")
    left = "document.querySelector('tbody th').getBoundingClientRect().left"
    expect(box).to_have_class(re.compile("more-right"))
    before = page.evaluate(left)
    box.evaluate("one => (one.scrollLeft = one.scrollWidth)")
    expect(box).not_to_have_class(re.compile("more-right"))
    expect(box).to_have_class(re.compile("more-left"))
    assert abs(page.evaluate(left) - before) < 2
    heads = page.locator("thead th").all_text_contents()
    assert heads.index("params.width") < heads.index("val/coco/mAP/all")
    assert "optimizer.lr" in heads  # of the configs
    assert not any("#" in text for text in page.locator("tbody td").all_text_contents())
    watched.close()


def test_the_time_line_shows_goodput_restarts_and_rollbacks(browser, gallery):
    watched = Watched(browser, gallery.address)
    page = watched.page
    open_view(page, gallery.address, "run", "restarted twice")
    line = page.locator(".timeline")
    expect(line).to_contain_text("60.7 % of 2 min 46 s in 3 attempts was useful training")
    kinds = ["finished", "restart", "preempted", "rollback", "restart", "killed", "start"]
    expect(line.locator("tbody th")).to_have_text(kinds)
    expect(line).to_contain_text("from step 250 to 200: 50 repeated")
    expect(line).to_contain_text("restart 2 by the launcher")
    watched.close()


def test_two_hundred_runs_are_listed_and_tabulated(browser, tmp_path):
    for number in range(200):
        simple_run(tmp_path, f"run {number}", steps=20, seed=number)
    with served(tmp_path) as board:
        watched = Watched(browser, board.address)
        expect(watched.page.locator("ul.runs li")).to_have_count(200)
        watched.page.keyboard.press("2")
        expect(watched.page.locator("table.wide tbody tr")).to_have_count(200)
        watched.page.get_by_role("button", name="all", exact=True).click()
        watched.page.keyboard.press("3")
        expect(watched.page.get_by_text("188 more selected runs are left out.")).to_be_visible()
        watched.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_a_report_fits_the_window(browser, gallery, tmp_path, width):
    runs = [gallery.root / name for name in ("restarted twice", ODD_NAME, LONG_NAME, "diverged")]
    write_report(runs, tmp_path / "report.html")
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert spill(page) == []
    clipped = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth)"
    if width == 360:
        assert page.evaluate(f"{clipped}.length") == 0
        label = (
            "getComputedStyle(document.querySelector('td[data-name=state]'), '::before').content"
        )
        assert page.evaluate(label) == '"state"'
    shoot(page, f"report-{width}")
    context.close()


# The pictures in the documentation


@pytest.fixture(scope="module")
def showcase(tmp_path_factory):
    """Runs as a person would compare them."""
    root = tmp_path_factory.mktemp("runs")
    best = "run: {epochs: 12, checkpoint: {best: val/accuracy}}\n"
    for number, (name, rate) in enumerate({"baseline": 1.0, "lr x2": 1.7, "lr x4": 3.0}.items()):
        config = f"optimizer: {{_target_: SGD, lr: {0.05 * rate:.3g}, momentum: 0.9}}\n{best}"
        simple_run(root, name, steps=1200, config=config, seed=number, rate=rate)
    restarted(root, "spot instance")
    with served(root) as found:
        yield found


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_the_documentation_is_taken(browser, showcase, name):
    tab, runs, more = PICTURES[name]
    look = {"width": 360, "height": 740} if "phone" in name else {"width": 1100, "height": 680}
    scheme = "dark" if "dark" in name else "light"
    watched = Watched(browser, showcase.address, viewport=look, color_scheme=scheme)
    open_view(watched.page, showcase.address, tab, *runs, **more)
    expect(watched.page.locator(SHOWN[tab]).first).to_be_visible()
    bar = watched.page.locator("#bar").bounding_box()
    assert "phone" in name or bar["height"] < 50, "the bar is broken into two lines"
    if tab == "charts" and "phone" not in name:
        expect(chart(watched.page, "train/loss").locator(".reading-row")).to_have_count(len(runs))
    save_picture(watched.page.screenshot(), SHOTS / name)
    watched.close()


def test_a_broken_run_is_shown_as_such_beside_the_others(browser, tmp_path):
    make_run(tmp_path, "good")
    bad = make_run(tmp_path, "bad", config="a: [1")
    (bad / "metrics.jsonl").write_bytes(os.urandom(2000) + b"\n" + rows(3).encode() + b'{"step": 4')
    with served(tmp_path) as board:
        watched = Watched(browser, board.address)
        run = watched.page.locator('li[data-run="bad"]')
        expect(run.locator(".fault")).to_contain_text("config.yaml is broken")
        expect(run.locator(".fault")).to_contain_text("metrics.jsonl has")
        expect(chart(watched.page, "train/loss")).to_have_attribute("data-points", "23")
        watched.close()


def test_a_page_that_loses_the_board_says_so_and_comes_back(browser, tmp_path):
    make_run(tmp_path, "one")
    moved = make_run(tmp_path, "two")
    with served(tmp_path) as board:
        watched = Watched(browser, board.address)
        runs = watched.page.locator("ul.runs li")
        expect(runs).to_have_count(2)
    expect(watched.page.locator(".line-state")).to_have_text("no connection")
    moved.rename(tmp_path / "three")
    with served(tmp_path, port=board.port):
        expect(watched.page.locator(".line-state")).to_have_text("live")
        expect(watched.page.locator('li[data-run="three"]')).to_be_visible()
        expect(runs).to_have_count(2)
        watched.context.close()
