import pytest

from support.project import project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small project, and the current folder."""
    return project(tmp_path, monkeypatch)
