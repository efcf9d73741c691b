"""The pages are correct: their code runs, their links resolve, the names they use exist.

The fence of a block says what is checked:

    ```python                   runs, after the other blocks of its page
    ```python skip: reason      does not run, for this reason
    ```python from path         consecutive lines of that file
    ```python net.py            is written to that file, for later blocks; likewise ```yaml c.yaml
    ```sh                       runs `stoker …`, `cd …` and `echo $?`, in this process
    ```text                     right after a python or sh block: exactly what that block prints
    ```text numbers vary        the same, but the values of decimal fractions are ignored
    ```text from path           consecutive lines of that file

In a text block, a line "…" stands for any number of omitted lines.
"""

import contextlib
import inspect
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

import stoker
import stoker.core.dist
import stoker.dialects
from stoker.cli import main
from stoker.config import RunConfig
from stoker.config.run_section import help_lines
from stoker.engine.compile import RecompilationLogger
from support.stores import S3Server, environment

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("benchmarks/*.md")),
]
ALL_PAGES = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
SKIPPED = 0  # number of blocks that do not run; each fence gives the reason


def name_of(page: Path) -> str:
    return f"benchmarks-{page.stem}" if page.parent.name == "benchmarks" else page.stem


a_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
any_page = pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)


@dataclass
class Block:
    """A fenced block: the info string of its fence, its first line number, and its text."""

    info: str
    line: int
    text: str
    follows_code: bool

    @property
    def runs(self) -> bool:
        return self.info in ("python", "sh")

    @property
    def file(self) -> str | None:
        match = re.fullmatch(r"(?:python|yaml) ([\w-]+\.(?:py|yaml))", self.info)
        return match[1] if match else None

    @property
    def source(self) -> str | None:
        match = re.fullmatch(r"(?:python|text) from (\S+)", self.info)
        return match[1] if match else None


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    last_end = -2
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = next(i for i in range(at + 1, len(lines)) if lines[i] == "```")
            near = all(not line.strip() for line in lines[last_end + 1 : at])
            text = "\n".join(lines[at + 1 : end])
            after = bool(found) and found[-1].runs and near
            found.append(Block(lines[at][3:].strip(), at + 2, text, after))
            last_end = at = end
        at += 1
    return found


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def printed_by(page: Path) -> Iterator[tuple[Block, str]]:
    """Run the page as one program, and yield each block with its output."""
    name = page.relative_to(ROOT)
    program: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.file is not None:
            Path(block.file).write_text(block.text + "\n", encoding="utf-8")
            sys.modules.pop(Path(block.file).stem, None)  # another page may have one of this name
        elif block.info == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(name), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, program)
            yield block, out.getvalue()
        elif block.info == "sh":
            yield block, printed_by_commands(block.text)


def printed_by_commands(lines: str) -> str:
    """Return what a terminal would show: both streams of each command, in order."""
    exit_code = 0
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for line in lines.splitlines():
            match shlex.split(line, comments=True):
                case []:
                    continue
                case ["stoker", *arguments]:
                    exit_code = exit_code_of(arguments)
                case ["cd", folder]:
                    os.chdir(folder)
                case ["echo", "$?"]:
                    print(exit_code)
                case other:
                    raise AssertionError(f"a page cannot run {other}: use stoker, cd or echo $?")
    return out.getvalue()


def exit_code_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # --help, or an unknown command
        return int(end.code or 0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: tiny models are slow on several when other tests run in parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def forget_modules(tmp_path: Path) -> Iterator[None]:
    """Forget the modules that a page has written and imported."""
    yield
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def forget_compilations() -> None:
    """Reset the compiler, so that compilations of other tests are not counted."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        listening = torch._dynamo.callback.callback_handler.end_callbacks
        listening[:] = [one for one in listening if not isinstance(one, RecompilationLogger)]


@pytest.fixture
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Start a server of S3 for the pages that use a bucket."""
    if request.getfixturevalue("page").name not in ("object-stores.md", "streams.md"):
        yield
        return
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server.url).items():
            patch.setenv(name, value)
        patch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
        yield
    server.kill()


@pytest.mark.process
@a_page
@pytest.mark.usefixtures("one_thread", "forget_modules", "forget_compilations", "bucket")
def test_every_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    with torch.random.fork_rng(), contextlib.redirect_stderr(io.StringIO()):
        torch.manual_seed(0)
        printed = {block.line: out for block, out in printed_by(page)}
    last = ""
    for block in blocks(page):
        if block.runs:
            last = printed[block.line]
        elif block.follows_code and block.info in ("text", "text numbers vary"):
            same = _equal_but_fractions if "vary" in block.info else str.__eq__
            shown, real = _trimmed(block.text), _trimmed(last)
            assert _shows(shown, real, same), f"{page.name}:{block.line} does not show\n{last}"


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _shows(shown: list[str], real: list[str], same: Callable[[str, str], bool]) -> bool:
    """Return whether the lines match; "…" stands for any number of real lines."""
    if not shown or not real:
        return not real and all(line == "…" for line in shown)
    if shown[0] == "…":
        return any(_shows(shown[1:], real[at:], same) for at in range(len(real) + 1))
    return same(shown[0], real[0]) and _shows(shown[1:], real[1:], same)


def _equal_but_fractions(shown: str, printed: str) -> bool:
    """Return whether two lines are equal except for the values of decimal fractions."""
    token = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?|[^\s\d]+")
    pairs = list(zip_longest(token.findall(shown), token.findall(printed)))
    return all(
        one == other or (_is_number(one) and _is_number(other) and "." in one + other)
        for one, other in pairs
    )


def _is_number(token: str | None) -> bool:
    return token is not None and token.lstrip("+-")[:1].isdigit()


def test_only_known_blocks_are_skipped() -> None:
    skipped = [
        f"{page.name}:{block.line} {block.info}"
        for page in ALL_PAGES
        for block in blocks(page)
        if block.info.startswith("python skip:")
    ]
    assert len(skipped) == SKIPPED, "\n".join(skipped)


@any_page
def test_every_fence_is_understood(page: Path) -> None:
    known = (
        r"python|python skip: .+|(python|text) from \S+|text|text numbers vary|console|json|csv|"
        r"toml|sh|python [\w-]+\.py|yaml [\w-]+\.yaml"
    )
    for block in blocks(page):
        assert re.fullmatch(known, block.info), f"{page.name}:{block.line - 1}"
        if block.info in ("text", "text numbers vary"):
            assert block.follows_code, f"{page.name}:{block.line} follows no block that prints"


@any_page
def test_excerpts_are_lines_of_the_file_they_name(page: Path) -> None:
    for block in blocks(page):
        if block.source is not None:
            there = _lines(_code(ROOT / block.source))
            excerpt = _lines(block.text)
            starts = [n for n, line in enumerate(there) if line == excerpt[0]]
            assert excerpt in [there[n : n + len(excerpt)] for n in starts], (
                f"{page.name}:{block.line} is not an excerpt of {block.source}"
            )


def _code(path: Path) -> str:
    """Return a file, or the code cells of a notebook."""
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = (one for one in json.loads(text)["cells"] if one["cell_type"] == "code")
    return "\n".join("".join(one["source"]) for one in cells)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@any_page
def test_every_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(there), f"{page.name} links to {target}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


@any_page
def test_every_file_it_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    folders = r"(?<![\w/])(?:src|docs|examples|tests|benchmarks|board)/[\w./-]*\w"
    named = set(re.findall(folders, text)) | set(
        re.findall(r"`((?:\w+\.(?:py|md|toml))|constraints\.txt|Makefile|LICENSE)`", text)
    )
    missing = [name for name in sorted(named) if not _exists(name, page)]
    assert not missing


def _exists(name: str, page: Path) -> bool:
    places = (ROOT, ROOT / "examples", ROOT / "src" / "stoker", page.parent)
    written = {block.file for block in blocks(page)}
    starter = ROOT / "src" / "stoker" / "cli" / "starter" / f"{name}.txt"
    return name in written or starter.exists() or any((at / name).exists() for at in places)


PUBLIC = {
    "hooks": stoker.hooks,
    "events": stoker.events,
    "metrics": stoker.metrics,
    "stoker": stoker,
    "run": stoker.Run,
    "trainer": stoker.Trainer,
    "Priority": stoker.Priority,
    "config": stoker.config,
    "dist": stoker.core.dist,
}
FILES = {"json", "jsonl", "csv", "py", "md", "yaml"}
FIELDS = {field.name for field in fields(RunConfig)}  # run.epochs, in a config


@any_page
def test_every_public_name_in_prose_exists(page: Path) -> None:
    for owner, name in re.findall(rf"(?<![\w./])({'|'.join(PUBLIC)})\.([A-Za-z]\w*)", prose(page)):
        known = name in FILES or hasattr(PUBLIC[owner], name) or (owner == "run" and name in FIELDS)
        is_module = owner == "stoker" and find_spec(f"stoker.{name}") is not None
        assert known or is_module, f"{page.name}: {owner}.{name}"


def test_the_engine_has_every_attribute_the_pages_name() -> None:
    engine = stoker.Engine(torch.nn.Linear(1, 1))
    for page in ALL_PAGES:
        for name in re.findall(r"(?<![\w./])engine\.([a-z]\w*)", prose(page)):
            assert name in FILES or hasattr(engine, name), f"{page.name}: engine.{name}"


def hook_table() -> dict[str, tuple[str, str]]:
    """Return the rows of the table of built-in hooks: what each does, and its main arguments."""
    _, _, section = prose(ROOT / "docs" / "loop-and-hooks.md").partition("## Built-in hooks")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", section, flags=re.MULTILINE)
    return {name: (does, arguments) for name, does, arguments in rows}


def test_the_table_of_hooks_lists_every_hook() -> None:
    public = {name: getattr(stoker.hooks, name) for name in stoker.hooks.__all__}
    classes = {n for n, v in public.items() if isinstance(v, type) and issubclass(v, stoker.Hook)}
    assert set(hook_table()) == classes - {"Hook"}


@pytest.mark.parametrize("name", sorted(hook_table()))
def test_the_arguments_in_the_table_of_hooks_are_real(name: str) -> None:
    parameters = inspect.signature(getattr(stoker.hooks, name)).parameters
    for argument in re.findall(r"`([^`]+)`", hook_table()[name][1]):
        key, _, default = argument.partition("=")
        assert key in parameters
        real = parameters[key].default
        real = int(real) if isinstance(real, stoker.Priority) else real
        assert default == ("" if real is inspect.Parameter.empty else repr(real))


def test_the_points_of_the_loop_are_all_in_the_picture() -> None:
    text = (ROOT / "docs" / "loop-and-hooks.md").read_text("utf-8")
    assert [point for point in stoker.hooks.POINTS if point not in text] == []


def run_table() -> list[tuple[str, str]]:
    """Return the rows of the table of `run` fields: each name with its default."""
    text = prose(ROOT / "docs" / "run-fields.md")
    return re.findall(r"^\| `(run\.[\w.]+)` \| `([^`]*)` \|", text, flags=re.MULTILINE)


def test_the_table_of_run_fields_lists_every_field_with_its_default() -> None:
    assert run_table() == [(name, default) for name, _, default, _ in help_lines()]


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]*)  +\S", out.getvalue(), flags=re.MULTILINE)
    assert "train" in commands
    for command in commands:
        assert f"stoker {command}" in text
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main([command, "--help"])
        for option in set(re.findall(r"(?<![\w-])--[a-z-]+", out.getvalue())) - {"--help"}:
            assert f"`{option}" in text, f"{command} {option}"


def override_table() -> list[str]:
    """Return the left column of the table of overrides, as it would be typed."""
    _, _, section = prose(ROOT / "docs" / "command-line.md").partition("## Overrides")
    section = section.partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


@pytest.mark.usefixtures("forget_modules")
@pytest.mark.parametrize("typed", override_table())
def test_every_override_that_is_shown_fits_the_starter(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(["new", "starter"]) == 0
    assert exit_code_of(["config", "starter/config.yaml", "--check", *shlex.split(typed)]) == 0
