"""Places in the user's own source where something happens, and what objects are called there."""

import linecache
import os
import sys
import sysconfig

_PROBE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # fixes run there too
_STANDARD = tuple(
    {os.path.realpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib")}
)
_FOREIGN = [os.sep + "%s-packages" % kind + os.sep for kind in ("site", "dist")]
_FOREIGN += [os.sep + os.path.join("torch", part) + os.sep for part in ("nn", "utils", "optim")]
_LONGEST_LINE = 200
_verdicts: dict = {}


def is_users(filename):
    """Return whether a code's file is the user's: no library's, Python's, or torchdoctor's."""
    if (verdict := _verdicts.get(filename)) is None:
        path = filename and os.path.realpath(filename)
        foreign = not path or filename.startswith("<") or path.startswith((_OWN, *_STANDARD))
        verdict = _verdicts[filename] = not (foreign or any(folder in path for folder in _FOREIGN))
    return verdict


def is_probes(filename):
    """Return whether a code object's file is one of the probe's own."""
    return filename.startswith(_PROBE)


def is_ours(filename):
    """Return whether a code object's file is one of torchdoctor's, as the probe's and a fix's."""
    return filename.startswith(_OWN)


def of_line(filename, line, function):
    """Return a line of a code object's file as `schema.Location`."""
    return {"file": os.path.abspath(filename), "line": line, "function": function}


def of_frame(frame):
    """Return the frame as `schema.Location`."""
    code = frame.f_code
    return of_line(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)


def text_at(location):
    """Return the line of source at a `schema.Location`; "" where there is none."""
    if location is None:
        return ""
    return linecache.getline(location["file"], location["line"]).strip()[:_LONGEST_LINE]


def users_frames(frame):
    """Yield the frames of the user's own code at and above `frame`, the innermost first."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def users_frame(frame):
    """Return the innermost frame of the user's own code at or above `frame`, or None."""
    return next(users_frames(frame), None)


def here():
    """Return the user's line that led to this call; None where only libraries are above."""
    frame = users_frame(sys._getframe(1))
    return of_frame(frame) if frame is not None else None


def made_here(made):
    """Return the user's line that made an object, and the package that made it, called from there.

    Frames alone are looked at: a look at names keeps what they hold alive, up to Python 3.12.
    """
    frame = sys._getframe(1)
    package = None
    constructors = _constructors(type(made))
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


def is_librarys(module):
    """Return whether a module of this name is of an installed package, but torch."""
    return _package(getattr(sys.modules.get(module), "__file__", None) or "") is not None


def _package(filename):
    """Return the top package that an installed file belongs to, but torch and us; else None."""
    path = filename.replace(os.sep, "/").replace("/dist-packages/", "/site-packages/")
    _, installed, rest = path.rpartition("/site-packages/")
    name = rest.split("/")[0].removesuffix(".py")
    return name if installed and name not in ("torch", "torchdoctor") else None


def names_of(value):
    """Return (call, holder, depth): the lines that led here and what `value` is called there.

    The innermost and the outermost line with a name for it, and the user's frames above that.
    """
    named = [(name_of(frame, value), frame) for frame in users_frames(sys._getframe(1))]
    bindings = [name and {"location": of_frame(frame), "name": name} for name, frame in named]
    named = [number for number, binding in enumerate(bindings) if binding is not None]
    if not named:
        return None, None, None
    return bindings[0], bindings[named[-1]], len(bindings) - 1 - named[-1]


def name_of(frame, value):
    """Return what a frame calls a value: a local, an attribute of one, or a global; or None."""
    named = list(frame.f_locals.items())
    for name, held in named:
        if held is value:
            return name
    # Attributes before globals: `co_names` holds both, and `self.net` may be a global's value too.
    for owner, held in named:
        # Of the instance alone: a property would run the user's code.
        attributes = getattr(held, "__dict__", None)
        if not owner.isidentifier() or type(attributes) is not dict:
            continue
        modules = attributes.get("_modules")
        # Not everything with such an attribute is a module: elsewhere it may be a set.
        children = modules.items() if isinstance(modules, dict) else ()
        for name, part in [*attributes.items(), *children]:
            if part is value and name in frame.f_code.co_names:
                return "%s.%s" % (owner, name)
    names = frame.f_code.co_names
    global_values = frame.f_globals
    return next((name for name in names if global_values.get(name) is value), None)
