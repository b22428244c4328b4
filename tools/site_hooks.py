"""Hooks of mkdocs: pages that are generated, and links that lead out of docs/.

The guides of the repository, the examples and the help of the command line become pages.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
GUIDES: Final = ("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
_GUIDE_LINK: Final = re.compile(rf"\]\((?:\.\./)?({'|'.join(GUIDES)})\.md")
_EXAMPLE_LINK: Final = re.compile(r"\]\((?:\.\./)?examples/(\w+)\.py\)")
_SOURCE_LINK: Final = re.compile(r"\[([^]]+)\]\((?:src|tests|native|tools|bench)/[^)]*\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, text in generated().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links between the repository's folders links of the site."""
    markdown = _SOURCE_LINK.sub(r"\1", markdown.replace("](docs/", "]("))
    markdown = _GUIDE_LINK.sub(lambda m: f"]({m[1].lower()}.md", markdown)
    return _EXAMPLE_LINK.sub(lambda m: f"](examples.md#{m[1]})", markdown)


def generated() -> dict[str, str]:
    """Return the generated pages by name."""
    pages = {f"{n.lower()}.md": (ROOT / f"{n}.md").read_text() for n in GUIDES}
    return pages | {"examples.md": examples(), "cli.md": command_line()}


def examples() -> str:
    """Return the page with the programs of examples/."""
    parts = ["# Examples\n\nEach program runs as it is after `pip install .`, as in the tests.\n"]
    for path in sorted(ROOT.glob("examples/*.py")):
        code = path.read_text()
        about = (ast.get_docstring(ast.parse(code)) or "").split("\n")[0]
        parts.append(f"## {path.stem} {{#{path.stem}}}\n\n{about}\n\n```python\n{code}```\n")
    return "\n".join(parts)


def command_line() -> str:
    """Return the page with the help of every command."""
    from sardonyx.cli import main
    from sardonyx.cli.commands import _COMMANDS

    os.environ["COLUMNS"] = "100"
    parts = ["# Command line\n\nWhat `sardonyx --help` and `sardonyx COMMAND --help` print.\n"]
    for words in ([], *([name] for name in _COMMANDS)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main([*words, "--help"])
        title = " ".join(["sardonyx", *words])
        parts.append(f"## {title}\n\n```text\n{printed.getvalue()}```\n")
    return "\n".join(parts)
