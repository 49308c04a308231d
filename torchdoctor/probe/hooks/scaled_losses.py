"""Losses that a gradient scaler has multiplied, and what they were before.

A scaler changes its factor at each overflow: `scaler.scale(loss)` is no loss to compare or to show.
"""

import weakref

from .. import wrapping


def first_of(tensors):
    """Return what a backward pass begins at, as it is given: the first of several."""
    return tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors


class ScaledLosses:
    """The last product of a scaler in this process, with the loss that it was made of."""

    def __init__(self, session):
        self._session = session
        self._product, self._loss = None, None  # a weak reference to it, and the unscaled tensor

    def install(self):
        """Wrap `torch.amp.GradScaler.scale`, which the scalers of libraries inherit or call."""
        wrapping.wrap(self._session.torch.amp.GradScaler, "scale", self._around)

    def unscaled(self, tensor):
        """Return what the scaler was given where this tensor is its product, else the tensor."""
        is_product = self._product is not None and self._product() is tensor
        return self._loss if is_product else tensor

    def _around(self, old):
        session = self._session
        compiling = self._session.torch.compiler.is_dynamo_compiling
        remember = session.guarded(self._remember)

        def scale(scaler, outputs, *args, **kwargs):
            if compiling() or not session.on:
                return old(scaler, outputs, *args, **kwargs)
            try:
                product = old(scaler, outputs, *args, **kwargs)
            except BaseException as error:
                session.hide_frames(error)
                raise
            if product is not outputs:
                remember(product, outputs)
            return product

        return scale

    def _remember(self, product, loss):
        if getattr(loss, "numel", None) is not None and loss.numel() == 1:
            self._product, self._loss = weakref.ref(product), loss.detach()
