"""Host-to-device copies by `Tensor.to` and `Tensor.cuda`; only where torch was built for a GPU."""

import functools

from .. import step_log


def install(session):
    """Wrap both methods; a copy that stays on its device logs nothing."""
    torch = session.torch
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return
    for name in ("to", "cuda"):
        _wrap(session, torch.Tensor, name)


def _wrap(session, cls, name):
    old = getattr(cls, name)
    log_add = step_log.EventLog.add_at

    def copied(tensor, began, result, non_blocking):
        pinned = bool(non_blocking) and tensor.is_pinned()
        ident = int(pinned) | (int(bool(non_blocking)) << 1)
        size = tensor.numel() * tensor.element_size()
        log_add(session.log, step_log.COPY_BEGIN, ident, began, size)
        session.log.add(step_log.COPY_END, ident, size)

    copied = session.guarded(copied)

    @functools.wraps(old)
    def method(self, *args, **kwargs):
        if not session.on or self.device.type != "cpu":
            return old(self, *args, **kwargs)
        began = step_log.perf_counter_ns()
        result = old(self, *args, **kwargs)
        if result.device.type == "cuda":
            copied(self, began, result, kwargs.get("non_blocking"))
        return result

    setattr(cls, name, method)
