"""Tracebacks as plain Python would print them: without the probe's own frames."""

import os
import sys

_PROBE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_installed = False


def install():
    """Filter what the default excepthook prints. A hook of the user's own is left alone.

    Called only once an exception has passed through the probe, so that `sys.excepthook` is
    untouched in every other program.
    """
    global _installed
    if _installed or sys.excepthook is not sys.__excepthook__:
        return
    _installed = True

    def excepthook(kind, error, traceback):
        sys.__excepthook__(kind, error, _without_ours(traceback))

    sys.excepthook = excepthook


def _without_ours(traceback):
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    current = traceback
    while current is not None and current.tb_next is not None:
        if _is_ours(current.tb_next):
            current.tb_next = current.tb_next.tb_next
        else:
            current = current.tb_next
    return traceback


def _is_ours(traceback):
    return traceback.tb_frame.f_code.co_filename.startswith(_PROBE)
