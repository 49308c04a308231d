"""The words that everybody speaks: all data types, as frozen keyword-only dataclasses.

Units stand in the field's name (`_s`, `_bytes`, `_share` 0 to 1). `None` means *not measured*,
never zero. A comment `#:` describes a field in JSON Schema and docs. Per-step data are in columns.

May import: probe.
"""
# ruff: noqa: F403

from torchdoctor.words.efficiency import *
from torchdoctor.words.environment import *
from torchdoctor.words.evidence import *
from torchdoctor.words.fix_sets import *
from torchdoctor.words.launches import *
from torchdoctor.words.network import *
from torchdoctor.words.program import *
from torchdoctor.words.recording import *
from torchdoctor.words.report import *
from torchdoctor.words.specs import *
from torchdoctor.words.touched import *
from torchdoctor.words.traced import *
from torchdoctor.words.trials import *
from torchdoctor.words.verdict import *
