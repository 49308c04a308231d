"""Under which name the user's code knows an object, and from how far up."""

import sys

from . import places


def of(value):
    """Return the lines that led here and what `value` is called there.

    Returns:
        (call, holder, depth): the innermost line of the user's code and the outermost one that has
        a name for the value, as `words.Binding` or None, and the number of user's frames above
        the holder's.
    """
    frame = places.users_frame(sys._getframe(1))
    call = _binding(frame, value) if frame is not None else None
    holder, depth = None, 0
    while frame is not None:
        depth += 1
        binding = _binding(frame, value)
        if binding is not None:
            holder, depth = binding, 0
        frame = places.users_frame(frame.f_back)
    return call, holder, depth if holder is not None else None


def _binding(frame, value):
    name = name_of(frame, value)
    return None if name is None else {"location": places.of_frame(frame), "name": name}


def name_of(frame, value):
    """Return what a frame calls a value: a local, an attribute of one, or a global; or None."""
    # Attributes before globals: `co_names` holds both, and `self.net` may be a global's value too.
    for find in (_local, _attribute, _global):
        name = find(frame, value)
        if name is not None:
            return name
    return None


def _local(frame, value):
    for name, held in list(frame.f_locals.items()):
        if held is value:
            return name
    return None


def _attribute(frame, value):
    for owner, held in list(frame.f_locals.items()):
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
    return None


def _global(frame, value):
    for name in frame.f_code.co_names:
        if frame.f_globals.get(name) is value:
            return name
    return None
