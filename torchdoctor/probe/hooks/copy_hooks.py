"""Copies to the device and pauses by Python's garbage collector.

Not logged by `add`: what they are a part of or interrupt (a fetch, a forward) goes on as that.
"""

import gc

from .. import step_log
from ..wrapping import wrap

_LEAST_NS = 100_000  # a shorter pause does not matter


def install_pauses(session):
    """Register a collector callback."""
    began = [0]

    def callback(phase, info):
        if phase == "start":
            began[0] = step_log.perf_counter_ns()
            return
        ended = step_log.perf_counter_ns()
        if session.on and ended - began[0] >= _LEAST_NS:
            generation = info.get("generation", 0)
            session.log.add_at(step_log.GC_BEGIN, 0, began[0], generation)
            session.log.add_at(step_log.GC_END, 0, ended, generation)

    gc.callbacks.append(session.guarded(callback))


def install(session):
    """Wrap `Tensor.to` and `Tensor.cuda` (or the like), where torch was built for a device."""
    torch = session.torch
    accelerator = session.accelerator
    compiling = torch.compiler.is_dynamo_compiling
    if not accelerator.built:
        return

    @session.guarded
    def copied(tensor, began, args, kwargs):
        # Given by position it is the first flag, in every signature of both.
        flag = next((value for value in args if type(value) is bool), kwargs.get("non_blocking"))
        ident = int(tensor.is_pinned()) | (bool(flag) << 1)
        size = tensor.numel() * tensor.element_size()
        session.log.add_at(step_log.COPY_BEGIN, ident, began, size)
        session.log.add_at(step_log.COPY_END, ident, step_log.perf_counter_ns(), size)

    def make(old):
        def method(self, *args, **kwargs):
            if compiling() or not session.on or self.device.type != "cpu":
                return old(self, *args, **kwargs)
            began = step_log.perf_counter_ns()
            result = old(self, *args, **kwargs)
            if result.device.type == accelerator.type:
                copied(self, began, args, kwargs)
            return result

        return method

    for name in ("to", accelerator.type):
        wrap(torch.Tensor, name, make)
