"""Which source files the program is made of, for who compares two versions of them."""

import os
import sys

_INSTALLED = ("site-packages", "dist-packages")
# By module's name; None: of no interest. A look at the disk for each is not for every call.
_paths: "dict[str, str | None]" = {}


def loaded_sources():
    """Files of loaded modules but for the standard library's; of an installed package the first.

    An installed package is named by its `__init__.py`.
    """
    for name, module in list(sys.modules.items()):
        if name not in _paths:
            _paths[name] = _source(name, module)
    return sorted({path for path in _paths.values() if path is not None})


def _source(name, module):
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    folders = file.split(os.sep)
    if any(folder in folders for folder in _INSTALLED):
        return None if "." in name else os.path.realpath(file)
    path = os.path.realpath(file)
    library = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
    return None if path.startswith(library) else path
