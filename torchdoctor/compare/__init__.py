"""Two reports -> what changed from one to the other. Pure: no file, no clock.

May import: schema, advice, trials, reports.
"""

from torchdoctor.compare.compare import compare as compare
