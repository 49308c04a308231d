"""Lets the tests of this folder import the simulated program and the little training loops."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
