"""What the site needs beside the pages: plain fences, examples to link to, and the changelog."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import stoker

ROOT = Path(__file__).parent.parent
REFERENCE = {
    "Trainer, Run, Step": [stoker.Trainer, stoker.Run, stoker.Step, stoker.Output, stoker.Every],
    "Engine": [stoker.Engine, stoker.load_weights, stoker.seed_all],
    "Hooks": stoker.hooks,
    "Metrics": stoker.metrics,
    "Events": stoker.events,
    "Data": stoker.data,
    "Layout and launch": [stoker.Layout, stoker.launch.run],
    "Models": stoker.nn,
    "Configs": stoker.config,
    "Testing": stoker.testing,
}
"""The pages of the reference: single things, or a module, all of which is shown."""


def on_files(files: Files, config: Any) -> Files:
    """The examples and the changelog, which lie outside the folder of the pages."""
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix in (".py", ".yaml"):
            files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    for title, content in REFERENCE.items():
        text = f"# {title}\n\n{_directives(content)}\n"
        files.append(File.generated(config, f"api/{_slug(title)}.md", content=text))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences without what only the tests read, and links into the site."""
    titled = re.sub(r"^```(python|yaml) ([\w-]+\.\w+)$", r'```\1 title="\2"', markdown, flags=re.M)
    plain = re.sub(r"^```(\w+) (?!title=).*$", r"```\1", titled, flags=re.M)
    return plain.replace("](../examples/", "](examples/")


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _directives(content: Any) -> str:
    """What mkdocstrings is to show: the things, or all public classes and functions of a module."""
    if not isinstance(content, list):
        public = [getattr(content, name) for name in content.__all__]
        content = [thing for thing in public if hasattr(thing, "__qualname__")]
    return "\n\n".join(f"::: {thing.__module__}.{thing.__qualname__}" for thing in content)
