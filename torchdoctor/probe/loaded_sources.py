"""Which source files the program is made of, for who compares two versions of them."""

import os
import sys


def loaded_sources():
    """Files of loaded modules: all beside the interpreter's, and of installed packages the first.

    An installed package is named by its `__init__.py`; the interpreter's own library is left out.
    """
    library = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    inside = {os.path.realpath(prefix) + os.sep for prefix in prefixes}
    inside = tuple(inside | {prefix + os.sep for prefix in prefixes})
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if file.startswith(inside):
            if "." in name:  # thousands: not worth a look at the disk each
                continue
            folders = file.split(os.sep)
            installed = "site-packages" in folders or "dist-packages" in folders
            if not installed and os.path.realpath(file).startswith(library):
                continue
        found.add(os.path.realpath(file))
    return sorted(found)
