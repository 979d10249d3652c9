"""What the documentation site has besides docs/: documents of other folders, pages of examples, tables of settings.

Documents link to each other by their paths in the repository, so that links work where the files are read as they are.
In the site a link to an example, and its path, lead to its page, and a link to a file that the site does not have
becomes its name.
A line `settings: headrace.algorithms.ppo.PPOConfig` becomes a table of the settings of that dataclass.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
EXAMPLES = """# Examples

Short scripts, and PPO in one file.

| | |
|---|---|
"""
EXAMPLE = re.compile(r"(?<!\[)`(examples/\w+\.py)`(?!\])")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents and pictures of other folders, and the examples."""
    for name in DOCUMENTS:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for picture in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        name = str(picture.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    rows = []
    for example in sorted((ROOT / "examples").glob("*.py")):
        source = example.read_text()
        page = f"# {example.name}\n\n```python\n{source}```\n"
        files.append(File.generated(config, f"examples/{example.name}.md", content=page))
        about = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| [`{example.name}`]({example.name}.md) | {about} |")
    files.append(File.generated(config, "examples/index.md", content=EXAMPLES + "\n".join(rows)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Let links lead to pages of the site."""
    here = page.file.src_uri
    source = here if here in DOCUMENTS else f"docs/{here}"  # its path in the repository

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        for uri in (path.removeprefix("docs/"), f"{path}.md"):
            if files.get_file_from_path(uri):
                return f"[{text}]({os.path.relpath(uri, os.path.dirname(here) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # the strict build names it
        return text if "`" in text else f"`{text}`"

    def example(match: re.Match[str]) -> str:
        page = files.get_file_from_path(f"{match[1]}.md")
        return f"[{match[0]}]({os.path.relpath(page.src_uri, os.path.dirname(here) or '.')})" if page else match[0]

    markdown = re.sub(r"^settings: ([\w.]+)$", lambda match: settings(match[1]), markdown, flags=re.MULTILINE)
    return EXAMPLE.sub(example, LINK.sub(replaced, markdown))


def settings(config: str) -> str:
    """A table of a dataclass's fields: name, with an anchor, default, and the comment on it."""
    module, _, name = config.rpartition(".")
    kind = getattr(import_module(module), name)
    comments: dict[str, str] = {}
    for parent in reversed(kind.__mro__[:-1]):
        comments |= field_comments(inspect.getsource(parent))
    prefix = name.removesuffix("Config").lower()
    rows = [
        f"| {_anchored(f'{prefix}.{x.name}', x.name)} | `{x.default!r}` | {_linked(comments.get(x.name, ''))} |"
        for x in fields(kind)
    ]
    return "\n".join(["| Setting | Default | |", "|---|---|---|", *rows])


def _anchored(anchor: str, text: str) -> str:
    """Code that links to itself, so that others can link to it: settings.html#ppo.clip."""
    return f'<a id="{anchor}" href="#{anchor}"><code>{text}</code></a>'


def _linked(comment: str) -> str:
    """A comment as Markdown of a page in a folder of docs/: `docs/gpu.md` as a link, and no HTML."""
    escaped = comment.replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", escaped)


def field_comments(source: str) -> dict[str, str]:
    """The comment behind each field of a class, or the lines of comment above it."""
    found, above = {}, []
    for line in source.splitlines():
        if field := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            found[field[1]] = " ".join([*above, *([field[2]] if field[2] else [])]).replace("|", "\\|")
        comment = re.match(r"    # (.*)$", line)
        above = [*above, comment[1]] if comment else []
    return found
