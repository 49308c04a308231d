"""A setting of the program's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Something that the program's author chooses, as it was while it trained."""

    name: str  # "batch size", "optimizer fused"
    value: str
