"""The training's set-up: norms of the gradients, and the scale of the inputs.

Seen in the steps that are analysed after the profiler window; reading either waits for the device.
"""

import time

from ..fixkit.program import Program

_MOST_INPUTS = 3
_MOST_CHANNELS = 64
_MOST_GRADIENTS = 12
_MOST_BYTES = 256 * 2**20  # of copies of gradients
_MOST_S = 3.0  # of more steps, for gradients alone


class TrainingFacts:
    """Gradient norms at each step, mean and deviation of the model's input; read `quietly`."""

    def __init__(self, session, quietly):
        self._session = session
        self._quietly = quietly
        self._torch = session.torch
        self._norms = []
        self._inputs = []
        self._channels = []  # (means, deviations) of each of these inputs
        self._kept = []  # copies of whole gradients
        self._room = _MOST_GRADIENTS
        self._began_s = None
        self.on = False

    def start(self):
        """Look before each forward and each optimizer step."""
        program = Program(self._torch, "analysis")
        program.at("arguments", self._note_input)
        program.at("step", self._note_gradients)
        self._session.programs.append(program)
        self._began_s = time.perf_counter()
        self.on = True

    def wants_more(self):
        """Return whether a few more steps would tell more of the gradients."""
        if not self.on or not 0 < len(self._kept) < self._room:
            return False
        return time.perf_counter() - self._began_s < _MOST_S

    def _note_input(self, module, args, kwargs):
        torch = self._torch
        if not self.on or len(self._inputs) >= _MOST_INPUTS or not module.training:
            return
        for value in (*args, *kwargs.values()):
            tensor = isinstance(value, torch.Tensor) and value.device.type != "meta"
            if tensor and value.numel() > 1:
                # Whole numbers of 64 or 32 bits are token numbers or indices, not measurements.
                if value.is_floating_point() or value.dtype == torch.uint8:
                    with self._quietly():
                        numbers = value.detach().float()
                        self._inputs.append((float(numbers.mean()), float(numbers.std())))
                        self._look_at_channels(numbers)
                return

    def _look_at_channels(self, numbers):
        """Note mean and deviation by channel, of images or tables: (N, C, H, W), (N, C)."""
        if numbers.dim() == 3 or not 1 < numbers.dim() < 6 or numbers.shape[1] > _MOST_CHANNELS:
            return
        by_channel = numbers.transpose(0, 1).reshape(numbers.shape[1], -1)
        if by_channel.shape[1] > 1:
            self._channels.append((by_channel.mean(1).tolist(), by_channel.std(1).tolist()))

    def _note_gradients(self):
        if not self.on:
            return
        groups = [g for o in self._session.optimizers.alive() for g in o.param_groups]
        parameters = {id(p): p for group in groups for p in group["params"]}.values()
        gradients = [p.grad for p in parameters if p.grad is not None]
        with self._quietly():
            self._keep(gradients)
            norm = self._torch.linalg.vector_norm
            norms = [norm(gradient.detach().float()) for gradient in gradients]
            if norms:
                self._norms.append(float(norm(self._torch.stack(norms))))

    def _keep(self, gradients):
        """Copy the whole gradient to the host, as far as there is room for several."""
        torch = self._torch
        size = 4 * sum(gradient.numel() for gradient in gradients)
        if not size or any(gradient.is_sparse for gradient in gradients):
            return
        self._room = min(self._room, _MOST_BYTES // size)
        if len(self._kept) < self._room and self._room > 2:
            flat = [g.detach().to("cpu", torch.float32).reshape(-1) for g in gradients]
            self._kept.append(torch.cat(flat))

    def _products(self):
        """Return each kept gradient times each, once all are there, if as long as the last."""
        kept = [] if self.on else [g for g in self._kept if g.numel() == self._kept[-1].numel()]
        # dot: a matrix product may have been told to be imprecise.
        rows = [[float(self._torch.dot(a, b)) for b in kept[: i + 1]] for i, a in enumerate(kept)]
        return [[rows[max(i, j)][min(i, j)] for j in range(len(rows))] for i in range(len(rows))]

    def facts(self):
        """Return `gradient_norms`, `gradient_products`, `input_...` of the process facts."""
        facts = {"gradient_norms": self._norms, "gradient_products": self._products()}
        if self._inputs:
            count = len(self._inputs)
            facts["input_mean"] = sum(mean for mean, _ in self._inputs) / count
            facts["input_std"] = sum(std for _, std in self._inputs) / count
        if self._channels and len({len(means) for means, _ in self._channels}) == 1:
            columns = (zip(*rows) for rows in zip(*self._channels))  # noqa: B905 (Python 3.9)
            averages = [[sum(values) / len(values) for values in each] for each in columns]
            facts["input_channels"] = list(zip(*averages))  # noqa: B905
        return facts
