"""Functions of the program's own, replaced wherever a module or a class holds them."""

import functools
import os
import sys
import types

_YIELDS = 0x20 | 0x80 | 0x200  # flags of generators, coroutines and asynchronous generators


class HeldFunctions:
    """Puts other functions in place of those whose code is meant, and takes them away again.

    Code that was bound before (a local name, a list of hooks) goes on calling the old one.
    `generator`, `unheld`: the reason where one is a generator, or nobody holds any.
    """

    def __init__(self, program, generator, unheld):
        self._program = program
        self._generator = generator
        self._unheld = unheld
        self._replaced = []  # (module or class, name, value)
        self._made = {}  # by the id of the old one, which it keeps alive, and by who made it

    def put(self, suits, make):
        """Put make(old) in place of each function of which suits(code) is true."""
        modules = [m for m in list(sys.modules.values()) if type(m) is types.ModuleType]
        classes = [c for m in modules for c in list(vars(m).values()) if issubclass(type(c), type)]
        for owner in {id(owner): owner for owner in [*modules, *classes]}.values():
            for name, value in list(vars(owner).items()):
                self._replace(owner, name, value, suits, make)
        if not self._replaced:
            self._program.refuse_for(self._unheld)

    def _replace(self, owner, name, value, suits, make):
        plain = value.__func__ if type(value) in (staticmethod, classmethod) else value
        inner = undecorated(plain)
        if inner is None or not suits(inner.__code__):
            return
        if any(plain is new for _, new in self._made.values()):
            return
        if inner.__code__.co_flags & _YIELDS:
            self._program.refuse_for(self._generator)
        key = id(plain), make
        if key not in self._made:
            self._made[key] = (plain, functools.wraps(plain)(make(plain)))
        new = self._made[key][1]
        self._replaced.append((owner, name, value))
        setattr(owner, name, new if plain is value else type(value)(new))

    def take_back(self):
        """Put the functions back as they were."""
        while self._replaced:
            owner, name, value = self._replaced.pop()
            setattr(owner, name, value)


def is_at(file, name):
    """Return what tells whether a code is that of the function of a file."""
    path = os.path.abspath(file)
    return lambda code: code.co_name == name and os.path.abspath(code.co_filename) == path


def undecorated(value):
    """Return the function below its decorators; None if it is no function."""
    while type(value) is types.FunctionType:
        if "__wrapped__" not in vars(value):
            return value
        value = vars(value)["__wrapped__"]
    return None
