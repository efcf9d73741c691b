"""Images and texts stay with a run, one for each name and step."""

import json
import struct
import zlib

import numpy as np
import pytest
import torch

from stoker.events import log_image, log_text


def lines(folder):
    return [json.loads(line) for line in (folder / "media.jsonl").read_text().splitlines() if line]


def decoded(path):
    """The pixels of a PNG without filters."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, pixels = 8, b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + body
        )
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", body[:10])
        pixels += body if kind == b"IDAT" else b""
        at += 12 + size
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(height, 1 + width * channels)
    assert bits == 8
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (3, 5, 7), (4, 5, 7), (5, 7, 3), (5, 7, 1)])
def test_pixels_are_kept_as_they_are(tmp_path, shape):
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    log_image(tmp_path, "one", pixels, 3)
    (row,) = lines(tmp_path)
    assert (row["step"], row["name"], row["kind"]) == (3, "one", "image")
    wide = pixels.numpy()[..., None] if len(shape) == 2 else pixels.numpy()
    wide = np.moveaxis(wide, 0, -1) if wide.shape[2] == 7 else wide
    assert np.array_equal(decoded(tmp_path / "media" / row["file"]), wide)


def test_numbers_from_0_to_1_become_bytes(tmp_path):
    log_image(tmp_path, "one", np.array([[0.0, 0.5], [1.0, 9.0], [np.nan, -1.0]]), 1)
    found = decoded(next((tmp_path / "media").iterdir()))
    assert found[..., 0].tolist() == [[0, 128], [255, 255], [0, 0]]


def test_names_of_any_kind_stay_apart_and_within_the_folder(tmp_path):
    for name in ("a/b", "a_b", "../../x", "ä", "a" * 300):
        log_image(tmp_path, name, torch.zeros(2, 2), 1)
    files = {row["file"] for row in lines(tmp_path)}
    assert len(files) == 5
    assert {path.name for path in (tmp_path / "media").iterdir()} == files


def test_a_line_torn_by_a_kill_does_not_spoil_the_next(tmp_path):
    log_text(tmp_path, "said", "first", 1)
    with (tmp_path / "media.jsonl").open("a") as file:
        file.write('{"step": 2, "na')
    log_text(tmp_path, "said", "<third>", 3)
    last = (tmp_path / "media.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["text"] == "<third>"


def test_a_run_without_a_folder_keeps_nothing():
    log_text(None, "said", "nothing", 1)
    log_image(None, "one", torch.zeros(2, 2), 1)


def test_what_is_no_image_is_refused_with_its_shape(tmp_path):
    with pytest.raises(ValueError, match=r"\(2, 5, 7\), expected height × width"):
        log_image(tmp_path, "one", torch.zeros(2, 5, 7), 1)
