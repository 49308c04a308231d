"""TOML by the standard library, or on Python 3.10 by the package that became it."""

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    # Of Python 3.10 alone, so that it is seldom there for mypy.
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

BrokenToml = tomllib.TOMLDecodeError


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the table that a text holds; raise BrokenToml if it is none."""
    table: dict[str, Any] = tomllib.loads(text)
    return table
