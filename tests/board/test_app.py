"""What the board answers, and to whom."""

import json
import os
from urllib.parse import quote

import pytest

from support.board_runs import make_checkpoint, make_run, rows, served


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "one")
    make_run(root, "two", 30, "optimizer: {lr: 0.2}\nrun: {epochs: 3}\n")
    make_run(root, "sweep/a<script>alert(1)</script>"[:40])
    with served(root) as found:
        found.root = root
        yield found


def test_every_run_is_listed_also_those_in_folders_below(board):
    runs = {run["id"]: run for run in board.get("runs")["runs"]}
    assert {"one", "two"} < set(runs)
    assert any(id.startswith("sweep/") for id in runs)
    assert runs["one"]["status"]["state"] == "finished"
    assert runs["one"]["best"]["name"] == "val/accuracy"


def test_curves_come_by_any_axis_and_window(board):
    found = board.get("series", run="one", name=["train/loss", "lr"], x="samples")["series"]
    assert found["train/loss"]["x"][0] == 32
    assert found["lr"]["count"] == 20
    zoomed = board.get("series", run="one", name="lr", **{"from": 5, "to": 6})
    assert zoomed["series"]["lr"]["x"] == [4, 5, 6, 7]


def test_configs_are_compared_key_by_key(board):
    assert board.get("compare", run=["one", "two"])["rows"] == [
        {"key": "optimizer.lr", "values": ["0.1", "0.2"]},
        {"key": "run.epochs", "values": ["2", "3"]},
    ]


def test_the_table_has_what_differs_and_what_came_of_it(board):
    table = board.get("table")
    assert table["keys"] == ["optimizer.lr", "run.epochs"]
    row = next(row for row in table["rows"] if row["id"] == "two")
    assert row["config"] == {"optimizer.lr": 0.2, "run.epochs": 3}
    assert row["last"]["train/loss"] == pytest.approx(1 / 30)


def test_the_tail_of_the_log_is_shown(board):
    assert board.get("log", run="one")["lines"][-2].endswith("finished (step 20)")


def test_checkpoints_are_shown_and_verified_to_the_last_byte(board):
    whole = make_checkpoint(board.root / "one", 10)
    make_checkpoint(board.root / "one", 20, b"x" * 50)
    (board.root / "one" / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"y")
    unfinished = board.root / "one" / "checkpoints" / "step-00000030"
    unfinished.mkdir()
    found = board.get("run", run="one")["checkpoints"]
    assert [(one["step"], one["state"]) for one in found] == [
        (30, "broken"), (20, "broken"), (10, "sizes match")]  # fmt: skip
    assert found[1]["faults"] == ["'model.safetensors' has 1 bytes, expected 50"]
    assert board.get("verify", run="one", checkpoint=whole.name)["state"] == "verified"
    (whole / "model.safetensors").write_bytes(b"weighty")
    assert board.get("verify", run="one", checkpoint=whole.name)["state"] == "broken"


def test_nothing_in_the_runs_folder_is_changed(tmp_path):
    make_checkpoint(make_run(tmp_path, "one"), 10)

    def everything():
        paths = sorted(tmp_path.rglob("*"))
        return [(p, p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths]

    before = everything()
    with served(tmp_path) as board:
        for call in ("runs", "run", "log", "table", "series", "timeline", "compare", "verify"):
            board.get(call, run="one", name="lr", checkpoint="step-00000010")
        next(board.events())
    assert everything() == before


@pytest.mark.slow
def test_the_stream_reports_new_rows_and_runs_that_come_and_go(tmp_path):
    folder = make_run(tmp_path, "one", log="")
    with served(tmp_path) as board:
        events = board.events()
        first = next(events)
        assert first["known"] == ["one"]
        assert [run["id"] for run in first["runs"]] == ["one"]
        with (folder / "metrics.jsonl").open("a") as out:
            out.write(rows(5, 20))
        assert next(events)["runs"][0]["status"]["step"] == 25
        make_run(tmp_path, "two")
        assert next(events)["runs"][0]["id"] == "two"
        for path in (tmp_path / "two").iterdir():
            path.unlink()
        (tmp_path / "two").rmdir()
        assert next(events)["gone"] == ["two"]
        events.close()


def test_the_page_may_ask_nobody_else(board):
    status, headers, _ = board.ask("/api/runs")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "0.0.0.0", "[::2]"])
def test_another_name_for_this_machine_is_not_answered(board, host):
    assert board.ask("/api/runs", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:80"])
def test_the_names_of_this_machine_are_answered(board, host):
    assert board.ask("/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_board_only_reads(board, method):
    assert board.ask("/api/runs", method)[0] == 405


def test_a_token_is_requested_and_then_kept_in_a_cookie(tmp_path):
    with served(tmp_path, token="secret") as board:
        assert board.ask("/api/runs")[0] == 403
        assert board.ask("/?token=wrong")[0] == 403
        status, headers, _ = board.ask("/?token=secret")
        assert status == 303
        assert headers["location"] == "/"
        assert "HttpOnly" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        assert board.ask("/api/runs", Cookie=cookie)[0] == 200
        assert board.ask("/api/runs", Authorization="Bearer secret")[0] == 200
        assert board.ask("/assets/x", Cookie="bad;;=;" + cookie + "x")[0] == 403


OUTSIDE = [
    "../secret",
    "one/../../secret",
    "/etc",
    "one/..",
    "..%2fsecret",
    "one%00",
    "linked",
    "",
    ".",
    "..",
]


@pytest.mark.parametrize("id", OUTSIDE)
def test_no_run_outside_the_folder_can_be_named(tmp_path, id):
    make_run(tmp_path, "secret", config="password: hunter2")
    root = tmp_path / "runs"
    make_run(root, "one")
    (root / "linked").symlink_to(tmp_path / "secret")
    with served(root) as board:
        for call in ("run", "log", "series", "timeline", "compare", "verify", "image"):
            for spelt in (quote(id, safe=""), quote(quote(id, safe=""), safe=""), id):
                status, _, body = board.ask(f"/api/{call}?run={spelt}&name=lr&file=x.png")
                assert status in (400, 404)
                assert b"hunter2" not in body


@pytest.mark.parametrize(
    "target", ["/../../etc/passwd", "/assets/../../app.py", "/assets/%2e%2e/%2e%2e/app.py",
               "/assets/..%2f..%2fapp.py", "//etc/passwd"]
)  # fmt: skip
def test_no_file_beside_the_page_can_be_read(board, target):
    status, _, body = board.ask(target)
    assert status == 404
    assert b"import" not in body
    assert b"root:" not in body


def test_links_within_a_run_are_not_followed(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    root = tmp_path / "runs"
    folder = make_run(root, "one")
    for name in ("log.txt", "config.yaml", "env.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret)
    other = make_run(root, "two")
    (other / "metrics.jsonl").unlink()
    (other / "metrics.jsonl").symlink_to(folder / "metrics.jsonl")
    outside = make_checkpoint(tmp_path / "elsewhere", 10)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / outside.name).symlink_to(outside)
    (folder / "media").symlink_to(tmp_path)
    with served(root) as board:
        found = board.get("run", run="one")
        assert found["checkpoints"] == []
        assert found["env"] == found["config"] == {}
        assert board.get("run", run="two")["rows"] == 0
        assert board.get("log", run="one")["lines"] == [""]
        status, _, _ = board.ask(f"/api/verify?run=one&checkpoint={outside.name}")
        assert status == 404


def test_a_manifest_cannot_make_the_board_look_at_files_elsewhere(tmp_path):
    run = make_run(tmp_path / "runs", "one")
    folder = make_checkpoint(run, 10)
    (tmp_path / "secret").write_text("hunter2")
    from stoker.checkpoint.format.manifest import Manifest
    from stoker.storage import FileRecord

    text = Manifest(10, {}, 1, {"../../../../secret": FileRecord(7, "0" * 32)}).text()
    (folder / "MANIFEST.json").write_text(text)
    with served(tmp_path / "runs") as board:
        found = board.get("verify", run="one", checkpoint=folder.name)
    assert len(found["faults"]) == 1
    assert "it lists '../../../../secret', which is no file of a checkpoint" in found["faults"][0]


def test_a_pipe_in_a_run_folder_stops_nothing(tmp_path):
    folder = make_run(tmp_path, "one")
    for name in ("metrics.jsonl", "log.txt", "cost.json"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    with served(tmp_path) as board:
        assert board.get("run", run="one")["rows"] == 0


def test_wrong_requests_get_the_right_form(board):
    status, _, body = board.ask("/api/series?run=one&x=sideways")
    assert status == 400
    assert b"step, samples, epoch, time" in body
    assert board.ask("/api/series?run=one&from=x")[0] == 400
    assert board.ask("/api/series?run=one&from=nan&to=inf&points=-5&name=lr")[0] == 200


def test_a_run_that_is_a_folder_itself_can_be_shown(tmp_path):
    make_run(tmp_path, "one")
    with served(tmp_path / "one") as board:
        assert [run["id"] for run in board.get("runs")["runs"]] == ["one"]


def test_names_no_page_can_carry_are_shown_all_the_same(tmp_path):
    make_run(tmp_path, "plain")
    folder = os.fsencode(tmp_path) + b"/bad-\xff"
    os.mkdir(folder)
    with open(folder + b"/metrics.jsonl", "w") as out:
        out.write(rows(3))
    with served(tmp_path) as board:
        ids = [run["id"] for run in board.get("runs")["runs"]]
        assert ids == ["bad-%FF", "plain"]
        assert board.get("run", run="bad-%FF")["rows"] == 3


def test_costs_images_and_texts_are_shown(tmp_path):
    folder = make_run(tmp_path, "one")
    (folder / "cost.json").write_text(json.dumps({"breakdown": {"data": 0.1}, "hooks": {"LR": 1}}))
    png = b"\x89PNG\r\n\x1a\n rest"
    (folder / "media").mkdir()
    (folder / "media" / "a-1.png").write_bytes(png)
    (folder / "media" / "no.png").write_bytes(b"<script>")
    lines = [
        {"step": 1, "name": "a", "kind": "image", "file": "a-1.png", "time": 1.0},
        {"step": 2, "name": "b", "kind": "text", "text": "<b>hi</b>"},
        {"step": 2, "name": "b", "kind": "text", "text": "again"},
        {"step": "x"},
    ]
    (folder / "media.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with served(tmp_path) as board:
        found = board.get("run", run="one")
        assert found["cost"] == {"breakdown": [["data", 0.1]], "hooks": [["LR", 1.0]]}
        assert [(m["name"], m.get("text")) for m in found["media"]] == [("b", "again"), ("a", None)]
        status, headers, body = board.ask("/api/image?run=one&file=a-1.png")
        assert (status, headers["content-type"], body) == (200, "image/png", png)
        for name in ("no.png", "../config.yaml", "..%2fa-1.png"):
            assert board.ask(f"/api/image?run=one&file={name}")[0] == 404
