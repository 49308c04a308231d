"""Places in the user's own source where something happens."""

import os
import sys
import sysconfig

_PROBE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # fixes run there too
_STANDARD = tuple(
    {os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib")}
)
_verdicts: dict = {}


def is_users(filename):
    """Return whether a code's file is the user's: no library's, Python's, or torchdoctor's."""
    verdict = _verdicts.get(filename)
    if verdict is None:
        path = os.path.realpath(filename) if filename else ""
        foreign = (
            not path
            or filename.startswith("<")
            or path.startswith(_OWN)
            or path.startswith(_STANDARD)
            or (os.sep + "site-packages" + os.sep) in path
            or (os.sep + "dist-packages" + os.sep) in path
            or (os.sep + "torch" + os.sep + "nn" + os.sep) in path
            or (os.sep + "torch" + os.sep + "utils" + os.sep) in path
            or (os.sep + "torch" + os.sep + "optim" + os.sep) in path
        )
        verdict = _verdicts[filename] = not foreign
    return verdict


def is_probes(filename):
    """Return whether a code object's file is one of the probe's own."""
    return filename.startswith(_PROBE)


def of_frame(frame):
    """Return the frame as `words.Location`."""
    return {
        "file": os.path.abspath(frame.f_code.co_filename),
        "line": frame.f_lineno or frame.f_code.co_firstlineno,
        "function": frame.f_code.co_name,
    }


def of_line(filename, line, function):
    """Return a line of a code object's file as `words.Location`."""
    return {"file": os.path.abspath(filename), "line": line, "function": function}


def users_frame(frame):
    """Return the innermost frame of the user's own code at or above `frame`, or None."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def here():
    """Return the user's line that led to this call; None where only libraries are above."""
    frame = users_frame(sys._getframe(1))
    return of_frame(frame) if frame is not None else None


def made_here(made):
    """Return the user's line that made an object, and the package that made it, called from there.

    The innermost frames are the object's own constructors, and what libraries wrap around them.
    Looking at what a frame's names hold keeps it alive, up to Python 3.12: a library's workers.
    """
    frame, package, constructors = sys._getframe(1), None, _constructors(type(made))
    while frame is not None and not is_users(frame.f_code.co_filename):
        package = _package(frame.f_code.co_filename) or package
        if frame.f_code in constructors:
            package = None
        frame = frame.f_back
    return {**of_frame(frame), "through": package} if frame is not None else None


def _constructors(cls):
    """Return the code of all its constructors, and of what decorates them."""
    codes = set()
    for base in cls.__mro__:
        function = base.__dict__.get("__init__")
        while hasattr(function, "__code__") and function.__code__ not in codes:
            codes.add(function.__code__)
            function = getattr(function, "__wrapped__", None)
    return codes


def _package(filename):
    """Return the top package that an installed file belongs to, but torch; else None."""
    for folder in ("site-packages", "dist-packages"):
        _, installed, rest = filename.replace(os.sep, "/").rpartition("/%s/" % folder)
        name = rest.split("/")[0].removesuffix(".py")
        if installed and name != "torch":
            return name
    return None
