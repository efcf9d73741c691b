"""MkDocs hooks: add the examples, the reference and the changelog to the site."""

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
"""The pages of the reference: a list of objects, or a module with all its public names."""

LISTINGS = {
    "examples/cookbook/": "examples/cookbook",
    "examples/others/": "tests/foreign/cookbook",
    "examples/": "examples",
}
"""Where files that pages link to are on the site, and in the repository."""


def on_files(files: Files, config: Any) -> Files:
    """Add the examples and the changelog, which are outside the docs folder, and the reference."""
    for place, folder in LISTINGS.items():
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in (".py", ".yaml", ".ipynb"):
                files.append(File.generated(config, place + path.name, abs_src_path=str(path)))
    for title, content in REFERENCE.items():
        text = f"# {title}\n\n{_directives(content)}\n"
        files.append(File.generated(config, f"api/{_slug(title)}.md", content=text))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove what only the tests read from fences, and adjust links to examples."""
    titled = re.sub(r"^```(python|yaml) ([\w-]+\.\w+)$", r'```\1 title="\2"', markdown, flags=re.M)
    plain = re.sub(r"^```(\w+) (?!title=).*$", r"```\1", titled, flags=re.M)
    for place, folder in LISTINGS.items():
        plain = plain.replace(f"](../{folder}/", f"]({place}")
    return plain


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _directives(content: Any) -> str:
    """Return the mkdocstrings directives of the objects, or of all public names of a module."""
    if not isinstance(content, list):
        public = [getattr(content, name) for name in content.__all__]
        content = [item for item in public if hasattr(item, "__qualname__")]
    return "\n\n".join(f"::: {item.__module__}.{item.__qualname__}" for item in content)
