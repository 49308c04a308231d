"""Fixes that a test makes up."""

from __future__ import annotations

from typing import Any

from torchdoctor.schema.specs import FixSpec


def made_fix(ident: str = "made", **fields: Any) -> FixSpec:
    """Return a fix that applies anywhere and treats nothing, but for what is given."""
    given: dict[str, Any] = {
        "file": f"{ident.replace('-', '_')}.py",
        "page": "Set it.",
        "name": ident,
        "treats": (),
        "keeps_results": "within rounding",
        "when": "launch",
        "refuses": lambda recording: None,
        "instruction": lambda settings, recording: "set it",
        **fields,
    }
    return FixSpec(**given)
