"""One TensorBoard event file. Only the `tensorboard` package writes; torch is not imported."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any


class EventFile:
    """Points, texts and images of one TensorBoard run, the folder it lies in; whole at the end."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

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
        import numpy as np
        from tensorboard.plugins.scalar import metadata

        if value is not None and math.isfinite(value):
            about = metadata.create_summary_metadata(display_name="", description="")
            self._add(tag, np.float32(value), about, step, wall_s)

    def text(self, tag: str, text: str) -> None:
        """Write Markdown, shown as such."""
        import numpy as np
        from tensorboard.plugins.text import metadata

        about = metadata.create_summary_metadata(display_name="", description="")
        self._add(tag, np.array(text.encode(), dtype=object), about)

    def image(self, tag: str, png: bytes, width: int, height: int, description: str) -> None:
        """Write an image; width and height in pixels; the description is Markdown."""
        import numpy as np
        from tensorboard.plugins.image import metadata

        about = metadata.create_summary_metadata(display_name=None, description=description)
        parts = [str(width).encode(), str(height).encode(), png]
        self._add(tag, np.array(parts, dtype=object), about)

    def summary(self, summary: Any, step: int = 0, wall_s: float | None = None) -> None:
        """Write a summary that a plugin made itself."""
        from tensorboard.compat.proto.event_pb2 import Event

        wall = self._now if wall_s is None else wall_s
        self._file.add_event(Event(wall_time=wall, step=step, summary=summary))

    def _add(
        self, tag: str, value: Any, metadata: Any, step: int = 0, wall_s: float | None = None
    ) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.util.tensor_util import make_tensor_proto

        entry = Summary.Value(tag=tag, tensor=make_tensor_proto(value), metadata=metadata)
        self.summary(Summary(value=[entry]), step, wall_s)
