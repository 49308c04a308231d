"""First on PYTHONPATH in a launch: waits for `import torch`, then loads the probe.

Python imports this before the user's program. It must be silent, fast, and leave no trace: the
user's own sitecustomize runs as if this one were not there.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# Files that hook into modules before torch, and loaded only where one of these is imported.
_HOOKED = {
    "network": ("socket", "http.client", "httpcore", "httpcore2", "aiohttp"),
    "offline": (
        "wandb",
        "mlflow",
        "mlflow.tracking._tracking_service.utils",
        "mlflow.tracking.client",
        "mlflow.tracking._model_registry.utils",
        "comet_ml",
        "neptune",
        "clearml",
        "swanlab",
        "aim.sdk.repo",
        "trackio",
        "huggingface_hub.hf_api",
        "huggingface_hub.repocard",
        "huggingface_hub.repository",
        "datasets.arrow_dataset",
        "datasets.dataset_dict",
        "datasets.iterable_dataset",
    ),
}


class _ImportWatch:
    """A meta path finder that calls back once a watched top-level module has been executed."""

    def __init__(self):
        self._callbacks = {}
        self._busy = set()

    def when_imported(self, name, callback):
        if name in sys.modules:
            callback(sys.modules[name])
        else:
            self._callbacks.setdefault(name, []).append(callback)

    def find_spec(self, name, path=None, target=None):
        if name not in self._callbacks or name in self._busy:
            return None
        from importlib.util import find_spec

        self._busy.add(name)
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return None
        finally:
            self._busy.discard(name)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        # Only this loader instance is touched, and only until the module has been executed: the
        # module's __spec__ and __loader__ keep their type (resources are read through them).
        loader = spec.loader
        execute = spec.loader.exec_module

        def exec_module(module):
            vars(loader).pop("exec_module", None)
            execute(module)
            for callback in self._callbacks.pop(name, ()):
                callback(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec


def _load(name, path, **options):
    """Return the module of a file that lies here, executed under a private name."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, os.path.join(_HERE, path), **options)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_probe(torch):
    try:
        if '"image":' in _plan_text():  # a warm image, that goes on in forked launches alone
            _load("_torchdoctor_warm_image", "warm_image.py").hold_up(_plan_text())
        from importlib import import_module

        if '"watch":' in _plan_text():  # beside the real training: other hooks, no fix
            folder = os.path.dirname(_HERE)
            _load("_torchdoctor", "../__init__.py", submodule_search_locations=[folder])
            import_module("_torchdoctor.watch.inside.attach").attach(torch, _WATCH)
            return
        _load("_torchdoctor_probe", "__init__.py", submodule_search_locations=[_HERE])
        import_module("_torchdoctor_probe.attach").attach(torch, _WATCH)
    except Exception as error:
        _say(error)


def _say(error):
    """Report a failing probe in a file; it never stops the program."""
    try:
        import json
        import traceback

        path = json.loads(_plan_text())["channel"] + "/probe-error-%d.txt" % os.getpid()
        with open(path, "a", encoding="utf-8") as file:
            traceback.print_exception(type(error), error, error.__traceback__, file=file)
    except Exception:
        pass


def _plan_text():
    with open(os.environ["TORCHDOCTOR_PLAN"], encoding="utf-8") as file:
        return file.read()


def _redirect_writes():
    """Let Python and torch write to the scratch folder, from the program's first write on."""
    plan_text = _plan_text()
    if '"redirect"' not in plan_text:
        return
    import json

    plan = json.loads(plan_text)
    redirect = plan["redirect"]
    exempt = [plan["channel"], *redirect.get("exempt", [])]
    files = _load("_torchdoctor_scratch_layer", "scratch_layer.py")
    layer = files.Layer(redirect["scratch"], exempt)
    _load("_torchdoctor_redirect", "redirect.py").install(layer, _WATCH)


def _watch_network():
    """Note what the program speaks to, and keep trackers and uploads offline, from its start."""
    if '"watch":' in _plan_text():  # the real training goes on as it is
        return
    for file, names in _HOOKED.items():
        for name in names:
            _WATCH.when_imported(name, lambda module, where=(file, name): _install(*where, module))


def _install(file, name, module):
    """Hand a module that was just imported to the file of the probe that hooks into it."""
    try:
        module_name = "_torchdoctor_" + file
        (sys.modules.get(module_name) or _load(module_name, file + ".py")).install(name, module)
    except Exception as error:
        _say(error)


def _run_users_sitecustomize():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    # The import system pops this name when we return: it must never be missing.
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_WATCH = _ImportWatch()
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
if os.environ.get("TORCHDOCTOR_PLAN"):
    try:
        sys.meta_path.insert(0, _WATCH)
        _redirect_writes()
        _watch_network()
        _WATCH.when_imported("torch", _load_probe)
    except Exception as _error:
        _say(_error)
_run_users_sitecustomize()
