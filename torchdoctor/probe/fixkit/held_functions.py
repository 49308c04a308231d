"""A function of the program's own, replaced wherever a module or a class holds it."""

import functools
import os
import sys
import types

_YIELDS = 0x20 | 0x80 | 0x200  # flags of generators, coroutines and asynchronous generators


class HeldFunction:
    """The function of a file, by its name, in place of which `make(old)` is called while it is on.

    Code that was bound before (a local name, a list of hooks) goes on calling the old one.
    """

    def __init__(self, program, file, name, make):
        self._program, self._make = program, make
        self._file, self._name = os.path.abspath(file), name
        self._replaced = []  # (module or class, name, value)
        self._made = {}  # by the id of the old one, which it keeps alive

    def start(self):
        """Put the new function in place of the old one; refuse where nobody holds it."""
        modules = [m for m in list(sys.modules.values()) if type(m) is types.ModuleType]
        classes = [c for m in modules for c in list(vars(m).values()) if issubclass(type(c), type)]
        for owner in {id(owner): owner for owner in [*modules, *classes]}.values():
            for name, value in list(vars(owner).items()):
                self._replace(owner, name, value)
        if not self._replaced:
            self._program.refuse("The function %s is held by no module or class." % self._name)

    def _replace(self, owner, name, value):
        plain = value.__func__ if type(value) in (staticmethod, classmethod) else value
        inner = _undecorated(plain)
        if inner is None or inner.__code__.co_name != self._name:
            return
        if os.path.abspath(inner.__code__.co_filename) != self._file:
            return
        if any(plain is new for _, new in self._made.values()):
            return
        if inner.__code__.co_flags & _YIELDS:
            self._program.refuse("%s is a generator: no call returns its result." % self._name)
        if id(plain) not in self._made:
            self._made[id(plain)] = (plain, functools.wraps(plain)(self._make(plain)))
        new = self._made[id(plain)][1]
        self._replaced.append((owner, name, value))
        setattr(owner, name, new if plain is value else type(value)(new))

    def stop(self):
        """Put the function back as it was."""
        while self._replaced:
            owner, name, value = self._replaced.pop()
            setattr(owner, name, value)


def _undecorated(value):
    """Return the function below its decorators; None if it is no function."""
    while type(value) is types.FunctionType:
        if "__wrapped__" not in vars(value):
            return value
        value = vars(value)["__wrapped__"]
    return None
