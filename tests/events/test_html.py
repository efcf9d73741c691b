"""The HTML of results: escaped, finite, small."""

from html.parser import HTMLParser

import pytest

from stoker.events import History
from stoker.events.history import Explanation, Results
from stoker.events.notebook import charts_html

HOSTILE = "<script>alert('1')</script>\"&"


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def history(count=3, **more):
    rows = [{"epoch": n, "step": 8 * n, "val/loss": 1 / n, **more} for n in range(1, count + 1)]
    return History(rows)


@pytest.mark.parametrize(
    "thing", [history(**{HOSTILE: 1.0}), Results({HOSTILE: 1.0}), Explanation(HOSTILE)]
)
def test_names_are_escaped(thing):
    tags = Tags(thing._repr_html_())
    assert "script" not in tags.seen
    assert HOSTILE in tags.text


def test_a_stop_reason_is_shown_escaped():
    stopped = history()
    stopped.stop_reason = HOSTILE
    assert f"stopped: {HOSTILE}" in Tags(stopped._repr_html_()).text


def test_losses_of_training_and_validation_share_a_chart():
    html = charts_html(
        {"train/loss": [(1, 2), (2, 1)], "val/loss": [(1, 3), (2, 2)], "lr": [(1, 1)]}
    )
    assert html.count("<figure") == 1  # one point makes no curve
    assert html.count("<polyline") == 2
    assert 'stroke-dasharray="6 3"' in html


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_left_out_of_curves_and_named_in_the_table(value):
    rows = History([{"epoch": 1, "val/loss": 1.0}, {"epoch": 2, "val/loss": value}])
    rows.append({"epoch": 3, "val/loss": 0.5})
    tags = Tags(html := rows._repr_html_())
    assert str(value) in tags.text
    points = html.partition('points="')[2].partition('"')[0]
    assert len(points.split()) == 2
    assert "nan" not in points


def test_constant_results_and_long_histories_are_drawn():
    assert Tags(charts_html({"a": [(1, 1), (2, 1)]})).seen >= {"polyline"}
    html = history(5000)._repr_html_()
    assert html.count("<tr>") == 21
    assert len(html) < 20_000
    assert "4980 earlier epochs" in html


def test_an_empty_history_says_so():
    assert "no epoch was trained" in History()._repr_html_()


def test_results_are_a_dict_and_explanations_a_text():
    assert Results({"val/loss": 1.0}) == {"val/loss": 1.0}
    assert Explanation("a\nb") == "a\nb"
