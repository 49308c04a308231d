"""Two reports -> what changed from one to the other. Pure: no file, no clock."""

from __future__ import annotations

from torchdoctor.comparison.compare import compare

__all__ = ["compare"]
