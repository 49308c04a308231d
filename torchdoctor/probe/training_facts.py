"""What says how training itself is set up: norms of the gradients, and the scale of the inputs.

Seen in the steps that are analysed after the profiler window; reading either waits for the device.
"""

from .program import Program

_MOST_INPUTS = 3


class TrainingFacts:
    """Gradient norms at each optimizer step, mean and deviation of the first model's input."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._norms = []
        self._inputs = []
        self.on = False

    def start(self):
        """Look before each forward and each optimizer step."""
        program = Program(self._torch, "analysis")
        program.before_forward(self._look_at_input)
        program.before_step(self._look_at_gradients)
        self._session.programs.append(program)
        self.on = True

    def _look_at_input(self, module, args, kwargs):
        torch = self._torch
        if not self.on or len(self._inputs) >= _MOST_INPUTS or not module.training:
            return
        for value in (*args, *kwargs.values()):
            if (
                isinstance(value, torch.Tensor)
                and value.numel() > 1
                and value.device.type != "meta"
            ):
                whole = not value.is_floating_point()
                # Whole numbers of 64 or 32 bits are token numbers or indices, not measurements.
                if whole and value.dtype != torch.uint8:
                    return
                numbers = value.detach().float()
                self._inputs.append((float(numbers.mean()), float(numbers.std())))
                return
        return

    def _look_at_gradients(self):
        if not self.on:
            return
        torch = self._torch
        gradients = {}
        for optimizer in self._session.optimizers.alive():
            for group in optimizer.param_groups:
                gradients.update((id(p), p.grad) for p in group["params"] if p.grad is not None)
        norms = [torch.linalg.vector_norm(g.detach().float()) for g in gradients.values()]
        if norms:
            self._norms.append(float(torch.linalg.vector_norm(torch.stack(norms))))

    def facts(self):
        """`gradient_norms`, `input_mean` and `input_std` of the process facts."""
        found = {"gradient_norms": self._norms}
        if self._inputs:
            count = len(self._inputs)
            found["input_mean"] = sum(mean for mean, _ in self._inputs) / count
            found["input_std"] = sum(std for _, std in self._inputs) / count
        return found
