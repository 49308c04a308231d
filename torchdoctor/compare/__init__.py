"""Two reports -> what changed from one to the other. Pure: no file, no clock.

May import: words, advice, trials.
"""

from __future__ import annotations

from torchdoctor.compare.compare import compare

__all__ = ["compare"]
