"""Host-to-device copies by `Tensor.to` and `Tensor.cuda`; only where torch was built for a GPU."""

from .. import step_log
from ..wrapping import wrap


def install(session):
    """Wrap both methods; a copy that stays on its device logs nothing."""
    torch = session.torch
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return

    @session.guarded
    def copied(tensor, began, args, kwargs):
        # Given by position it is the first flag, in every signature of both.
        flag = next((value for value in args if type(value) is bool), kwargs.get("non_blocking"))
        ident = int(tensor.is_pinned()) | (bool(flag) << 1)
        size = tensor.numel() * tensor.element_size()
        # Not `add`: what the copy is a part of (preparing a batch, a forward) goes on as that.
        session.log.add_at(step_log.COPY_BEGIN, ident, began, size)
        session.log.add_at(step_log.COPY_END, ident, step_log.perf_counter_ns(), size)

    def make(old):
        def method(self, *args, **kwargs):
            if not session.on or self.device.type != "cpu":
                return old(self, *args, **kwargs)
            began = step_log.perf_counter_ns()
            result = old(self, *args, **kwargs)
            if result.device.type == "cuda":
                copied(self, began, args, kwargs)
            return result

        return method

    for name in ("to", "cuda"):
        wrap(torch.Tensor, name, make)
