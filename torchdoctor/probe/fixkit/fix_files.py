"""The fixes of a plan: their files are executed inside the user's process."""

import builtins
from importlib.util import module_from_spec, spec_from_file_location

from .program import Program


class _Inert:
    """Stands for every name of torchdoctor that a fix file imports.

    A fix needs them in the tool's process alone; torchdoctor may not be installed in the user's.
    """

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __iter__(self):
        return iter(())

    def __or__(self, other):  # in annotations
        return self


_INERT = _Inert()


def _import(name, *args, **kwargs):
    """Import for a fix file; `sys.modules` and the program's finders stay as they are."""
    if name.split(".")[0] == "torchdoctor":
        return _INERT
    return builtins.__import__(name, *args, **kwargs)


def execute(file, name):
    """Return the module of a fix file, which no other code of the program can see."""
    spec = spec_from_file_location(name, file)
    module = module_from_spec(spec)
    module.__builtins__ = dict(vars(builtins), __import__=_import)
    exec(spec.loader.get_code(name), vars(module))
    return module


def load_fix(session, entry, switched=False):
    """Load a fix of the plan by its path and apply it; return its `Program`."""
    program = Program(
        session.torch,
        entry["id"],
        session.plan,
        switched,
        optimizers=lambda: session.optimizers.alive(),
        loaders=lambda: session.loaders,
    )

    def apply():
        fix = execute(entry["file"], "_torchdoctor_fix_" + entry["id"].replace("-", "_"))
        fix.apply(session.torch, entry.get("settings") or {}, program)

    program.guarded(apply)
    return program
