"""One TensorBoard event file. Only the `tensorboard` package writes; torch is not imported."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto


class EventFile:
    """Points and texts of one TensorBoard run, the folder it lies in; whole at the end."""

    def __init__(self, folder: Path) -> None:
        self._file = EventFileWriter(str(folder))
        self._now = time.time()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def scalar(
        self, tag: str, value: float | None, step: int = 0, wall_s: float | None = None
    ) -> None:
        """Write a point at a wall time (default: now); None and NaN are no point."""
        if value is not None and math.isfinite(value):
            self._add(tag, np.float32(value), scalar_metadata, step, wall_s)

    def text(self, tag: str, text: str) -> None:
        """Write Markdown, shown as such."""
        self._add(tag, np.array(text.encode(), dtype=object), text_metadata)

    def summary(self, summary: Any, step: int = 0, wall_s: float | None = None) -> None:
        """Write a summary that a plugin made itself."""
        wall = self._now if wall_s is None else wall_s
        self._file.add_event(Event(wall_time=wall, step=step, summary=summary))

    def _add(
        self, tag: str, value: Any, plugin: Any, step: int = 0, wall_s: float | None = None
    ) -> None:
        about = plugin.create_summary_metadata(display_name="", description="")
        entry = Summary.Value(tag=tag, tensor=make_tensor_proto(value), metadata=about)
        self.summary(Summary(value=[entry]), step, wall_s)
