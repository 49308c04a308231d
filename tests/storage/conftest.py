from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("probe", "fixes")]


@pytest.fixture
def probed():
    """Runs a script under the real probe."""
    from probed import run_probed

    return partial(run_probed, forked=True)
