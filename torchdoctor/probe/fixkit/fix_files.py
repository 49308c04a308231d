"""The fixes of a plan: their files are executed inside the user's process."""

from importlib.util import module_from_spec, spec_from_file_location

from .program import Program


def load_fixes(torch, entries, plan=None, switched=False, optimizers=list, loaders=lambda: None):
    """Load each fix of the plan by its path and apply it; a list of `Program`.

    The last four as in `Program`.
    """
    programs = []
    for entry in entries:
        program = Program(torch, entry["id"], plan, switched, optimizers, loaders)
        programs.append(program)
        name = "_torchdoctor_fix_" + entry["id"].replace("-", "_")

        def apply(entry=entry, program=program, name=name):
            spec = spec_from_file_location(name, entry["file"])
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            module.apply(torch, entry.get("settings") or {}, program)

        program.guarded(apply)
    return programs
