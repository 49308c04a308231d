"""Changes of files and folders while writes are redirected.

Each function takes the layer and the real function of `os`, and returns what stands for it; that
gets the path as the program wrote it, then its absolute name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

Change = Callable[..., Any]


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def _must_exist(layer: Any, path: Any, full: str) -> None:
    if not layer.exists(full):
        raise _error(errno.ENOENT, path)


def updating(layer: Any, old: Change) -> Change:
    """Do truncate, utime, chmod... on a copy in the layer."""

    def update(path: Any, full: str, *args: Any, **kwargs: Any) -> Any:
        with layer:
            _must_exist(layer, path, full)
            return old(layer.for_write(full, keep=True), *args, **kwargs)

    return update


def making(layer: Any, old: Change) -> Change:
    """Do mkdir, mkfifo in the layer."""

    def make(path: Any, full: str, *args: Any, **kwargs: Any) -> Any:
        with layer:
            if layer.exists(full):
                raise _error(errno.EEXIST, path)
            return old(layer.for_write(full, keep=False), *args, **kwargs)

    return make


def removing(layer: Any, old: Change) -> Change:
    """Do remove, unlink: the real file is only hidden."""

    def remove(path: Any, full: str) -> None:
        with layer:
            _must_exist(layer, path, full)
            upper = layer.upper(full)
            if os.path.isdir(layer.for_read(full)) and not os.path.islink(layer.for_read(full)):
                raise _error(errno.EISDIR, path)
            if os.path.lexists(upper):
                old(upper)
            layer.remove(full)

    return remove


def removing_folder(layer: Any, old: Change) -> Change:
    """Do rmdir: as above, where the program sees it empty."""

    def remove(path: Any, full: str) -> None:
        with layer:
            _must_exist(layer, path, full)
            if not layer.is_folder(full):
                raise _error(errno.ENOTDIR, path)
            if layer.listing(full):
                raise _error(errno.ENOTEMPTY, path)
            if os.path.isdir(layer.upper(full)):
                old(layer.upper(full))
            layer.remove(full)

    return remove


def renaming(layer: Any, old: Change) -> Change:
    """Do rename, replace: all that moves is copied into the layer first."""

    def rename(path: Any, full: str, dst: Any, **kwargs: Any) -> None:
        with layer:
            _must_exist(layer, path, full)
            target = layer.name(dst)
            # To an exempt folder it really moves; from one, `updating` was never asked.
            to = target if layer.is_exempt(target) else layer.for_write(target, keep=False)
            if layer.is_folder(target) and layer.listing(target):
                raise _error(errno.ENOTEMPTY, dst)
            old(layer.copy_tree(full), to, **kwargs)
            layer.remove(full)

    return rename


def linking_by_name(layer: Any, old: Change) -> Change:
    """Do symlink(src, dst): dst is what is made."""

    def link(path: Any, full: str, dst: Any, *args: Any, **kwargs: Any) -> None:
        with layer:
            target = layer.name(dst)
            if layer.is_exempt(target):
                return old(path, dst, *args, **kwargs)
            if layer.exists(target):
                raise _error(errno.EEXIST, dst)
            # Kept as it is written: links are resolved by the layer, never by the kernel.
            return old(path, layer.for_write(target, keep=False), *args, **kwargs)

    return link


def linking(layer: Any, old: Change) -> Change:
    """Do link(src, dst) to a copy, or writing to one would change the real file."""

    def link(path: Any, full: str, dst: Any, **kwargs: Any) -> None:
        with layer:
            _must_exist(layer, path, full)
            target = layer.name(dst)
            if layer.exists(target):
                raise _error(errno.EEXIST, dst)
            source = layer.for_write(full, keep=True)
            to = target if layer.is_exempt(target) else layer.for_write(target, keep=False)
            old(source, to, **kwargs)

    return link
