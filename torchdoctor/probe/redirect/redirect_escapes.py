"""Names what got past the redirection, as far as Python's audit events tell."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

_MOST = 200
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.truncate": (0,),
    "sqlite3.connect": (0,),
}


def watch(layer: Any, channel: str) -> None:
    """Write `escaped-<pid>.json`, a list, as soon as there is something to say.

    An entry is a path that was written outside the layer, or "program: NAME" for another program
    that was started (a Python has the probe itself).
    """
    escaped: list[str] = []
    written = [0]

    def write() -> None:
        if len(escaped) == written[0]:
            return
        written[0] = len(escaped)
        path = os.path.join(channel, f"escaped-{os.getpid()}.json")
        with layer:
            try:
                with open(path + ".part", "w", encoding="utf-8") as file:
                    json.dump(escaped, file)
                os.replace(path + ".part", path)
            except OSError:
                pass  # the channel is gone: the launch is over

    def note(text: str) -> None:
        if text not in escaped and len(escaped) < _MOST:
            escaped.append(text)
            write()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            name = os.path.basename(os.fsdecode(args[0] or ""))
            if not layer.busy and not name.startswith("python"):
                note(f"program: {name}")
        elif event == "open":
            if isinstance(args[2], int) and args[2] & _WRITING:
                _check(layer, args[0], note)
        elif event in _PATHS:
            for position in _PATHS[event]:
                _check(layer, args[position], note)

    def guarded(event: str, args: tuple[Any, ...]) -> None:
        try:
            hook(event, args)
        except Exception:
            return  # an audit hook that raises would forbid the program what it does

    sys.addaudithook(guarded)
    atexit.register(write)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=escaped.clear)


def _check(layer: Any, path: Any, note: Any) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    if text in ("", ":memory:"):
        return
    with layer:
        full = layer.name(text)
        if not layer.is_exempt(full):
            note(full)
