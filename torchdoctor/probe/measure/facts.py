"""Writes `process-<number>.json`, `schema.ProcessFacts` as plain data, and other small files."""

import json
import os
import resource
import sys
import time

from .. import secret_values
from ..step_log import EventLog

_FRAMEWORKS = ("transformers", "lightning", "accelerate", "ignite", "keras", "timm", "deepspeed")
_CALIBRATION_EVENTS = 2000
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
# By module's name; None: of no interest. A look at the disk for each is not for every call.
_paths: "dict[str, str | None]" = {}


def write_json(path: str, content: object) -> None:
    """Write a JSON file whole or not at all; raise OSError."""
    # A path that is no UTF-8 holds lone surrogates, which no reader of JSON accepts.
    with open(path + ".part", "w", encoding="utf-8", errors="replace") as file:
        json.dump(content, file, default=str, ensure_ascii=False)
    os.replace(path + ".part", path)


def write(session, name="process"):
    """Rewrite `<name>-<number>.json` with everything that is known now."""
    collected = _of_process(session)
    for registry in session.registries:
        try:
            collected.update(registry.facts())
        except Exception as error:  # one part that cannot tell costs no other its facts
            session.fail(type(registry).__name__, error)
    collected["probe_errors"] = list(session.errors)
    write_json("%s/%s-%d.json" % (session.channel, name, session.number), collected)


def _of_process(session):
    torch = session.torch
    backend, world_size = _group(session)
    first_step_s = session.first_step_s
    return {
        "pid": session.pid,
        "argv": secret_values.masked([str(argument) for argument in getattr(sys, "argv", [])]),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        **session.accelerator.facts(),
        "rank": integer("RANK"),
        # Without torchrun (torch.multiprocessing.spawn) the environment does not say.
        "world_size": integer("WORLD_SIZE") or world_size,
        "is_loader_worker": session.is_loader_worker(),
        # But for the time for which another process had the turn.
        "first_step_s": None if first_step_s is None else first_step_s - session.stood_still_s,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES,
        "flags": session.flags.facts(),
        "fixes": [program.facts() for program in session.all_programs()],
        "backend": backend,
        "backend_location": session.flags.locations["backend"],
        "frameworks": [name for name in _FRAMEWORKS if name in sys.modules],
        "sources": loaded_sources(),
        "probe_cost_us_per_step": _cost(session),
    }


def integer(name):
    """Return the integer of a variable of the environment; None: there is none."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def _group(session):
    """Return (backend, processes) of the default process group, also after its end."""
    distributed = session.torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        session.group = str(distributed.get_backend()), int(distributed.get_world_size())
    return getattr(session, "group", (None, None))


def _cost(session):
    """Return microseconds per iteration that the probe's own events take, timed here and now."""
    iterations = session.window.iteration or session.batches or session.learned // 2
    if not iterations:
        return None
    if not hasattr(session, "event_cost_s"):
        log = EventLog(session.channel, session.number, lambda: None)
        began = time.perf_counter()
        for _ in range(_CALIBRATION_EVENTS):
            log.add(0)
        session.event_cost_s = (time.perf_counter() - began) / _CALIBRATION_EVENTS
    # This loop runs from warm caches. In a program each event costs about 8 times as much, and the
    # hooks and the loss as much as another 80 (fitted to benchmarks/probe_overhead.py).
    return 1e6 * session.event_cost_s * (8.0 * session.log.count / iterations + 80.0)


def loaded_sources():
    """Return files of loaded modules, but the standard library's; a package by `__init__.py`."""
    for name, module in list(sys.modules.items()):
        if name not in _paths:
            _paths[name] = _source(name, module)
    return sorted({path for path in _paths.values() if path is not None})


def _source(name, module):
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    if not set(_INSTALLED).isdisjoint(file.split(os.sep)):
        return None if "." in name else os.path.realpath(file)
    path = os.path.realpath(file)  # dear: asked for a library's thousand modules it delays a step
    return None if path.startswith(_LIBRARY) else path
