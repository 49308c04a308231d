"""The words that everybody speaks: all data types, as frozen keyword-only dataclasses.

Units stand in the field's name (`_s`, `_bytes`, `_share` 0 to 1). `None` means *not measured*,
never zero. A comment `#:` describes a field in JSON Schema and docs. Per-step data are in columns.

May import: probe.
"""
# ruff: noqa: F403

from torchdoctor.schema.efficiency import *
from torchdoctor.schema.environment import *
from torchdoctor.schema.evidence import *
from torchdoctor.schema.fix_sets import *
from torchdoctor.schema.launches import *
from torchdoctor.schema.location import *
from torchdoctor.schema.network import *
from torchdoctor.schema.program import *
from torchdoctor.schema.recording import *
from torchdoctor.schema.report import *
from torchdoctor.schema.specs import *
from torchdoctor.schema.touched import *
from torchdoctor.schema.traced import *
from torchdoctor.schema.trials import *
from torchdoctor.schema.verdict import *
