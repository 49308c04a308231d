"""A hook of MkDocs: what a repository's pages have and a site needs in another form.

Links that leave docs/ lead to the repository, commands are copied without their prompt, and a
drawing of arrows becomes a table, as drawing it would need another server's script. Nor does the
link to the repository ask its server how many stars it has.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_COMMANDS = re.compile(r"^```console\n(?P<lines>(?:\$ .*\n)+)```$", re.MULTILINE)
_DRAWING = re.compile(r"^```mermaid\ngraph TD\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)#:\s]+)(?P<part>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text as the site shows it."""
    return arrows(unprompted(outward(markdown, page.file.src_uri, config["repo_url"])))


def on_post_page(output: str, **_: Any) -> str:
    """Return a page whose link to the repository is nothing but a link."""
    return output.replace('data-md-component="source"', "")


def arrows(markdown: str) -> str:
    """Make a table of each drawing of arrows: a row for each beginning."""

    def table(match: re.Match[str]) -> str:
        ends: dict[str, list[str]] = {}
        for begin, end in re.findall(r"(\w+) --> (\w+)", match["lines"]):
            ends.setdefault(begin, []).append(f"`{end}`")
        rows = [f"| `{begin}` | {', '.join(names)} |" for begin, names in ends.items()]
        return "\n".join(["| from | arrows to |", "| --- | --- |", *rows])

    return _DRAWING.sub(table, markdown)


def unprompted(markdown: str) -> str:
    """Take the prompts away where a block holds nothing but commands: its button copies it."""

    def bare(match: re.Match[str]) -> str:
        return "```bash\n" + re.sub(r"^\$ ", "", match["lines"], flags=re.MULTILINE) + "```"

    return _COMMANDS.sub(bare, markdown)


def outward(markdown: str, page: str, repository: str) -> str:
    """Replace links of `page` (a path below docs/) to what the site does not hold."""

    def replaced(match: re.Match[str]) -> str:
        target, part = match["target"], match["part"] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        folder = not posixpath.splitext(path)[1] and path.split("/")[-1] != "LICENSE"
        if path.startswith("docs/") and not path.endswith(".ipynb") and not folder:
            return match[0]
        kind = "tree" if folder else "blob"
        return f"]({repository}/{kind}/main/{path}{part})"

    return _LINK.sub(replaced, markdown)
