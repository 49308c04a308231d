"""A hook of MkDocs: links that leave docs/ lead to the file in the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\((?P<target>[^)#:\s]+)(?P<part>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text with such links replaced."""
    return outward(markdown, page.file.src_uri, config["repo_url"])


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
