"""Fit of an oscillator's unknown constants through an unrolled integrator.

Illness: each step runs thousands of pointwise operations on tensors of half a kilobyte, so that
    starting an operation costs more than doing it.
Check expected: many-small-kernels
Bottleneck expected: cpu
Fix expected: torch-compile
"""

import argparse

import torch
from torch import nn

TRAJECTORIES = 128
INTEGRATION_STEPS = 12
TIME_STEP = 0.05


class DampedOscillator(nn.Module):
    """Integrates a damped, driven pendulum with the method of Runge and Kutta (order 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.constants = nn.Parameter(torch.tensor([0.5, 0.1, 0.2, 0.0]))

    def slope(self, angle, speed, time):
        stiffness, damping, drive, bend = self.constants.unbind()
        pull = stiffness * torch.sin(angle) + bend * angle * angle * angle
        brake = damping * speed * torch.sqrt(1.0 + speed * speed)
        return speed, drive * torch.cos(time + angle) - pull - brake

    def forward(self, angle, speed):
        """Return angle and speed after INTEGRATION_STEPS steps, each of the shape given."""
        time = torch.zeros_like(angle)
        h = TIME_STEP
        for _ in range(INTEGRATION_STEPS):
            a1, s1 = self.slope(angle, speed, time)
            a2, s2 = self.slope(angle + 0.5 * h * a1, speed + 0.5 * h * s1, time + 0.5 * h)
            a3, s3 = self.slope(angle + 0.5 * h * a2, speed + 0.5 * h * s2, time + 0.5 * h)
            a4, s4 = self.slope(angle + h * a3, speed + h * s3, time + h)
            angle = angle + h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4)
            speed = speed + h / 6.0 * (s1 + 2.0 * s2 + 2.0 * s3 + s4)
            time = time + h
        return angle, speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    truth = DampedOscillator().to(device)
    truth.constants.data = torch.tensor([1.0, 0.3, 0.6, 0.1], device=device)
    model = DampedOscillator().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)

    for step in range(1, steps + 1):
        start = torch.randn(2, TRAJECTORIES, generator=generator).to(device)
        with torch.no_grad():
            wanted_angle, wanted_speed = start[0], start[1]
            wanted_angle, wanted_speed = truth(wanted_angle, wanted_speed)
        angle, speed = model(start[0], start[1])
        loss = (angle - wanted_angle).square().mean() + (speed - wanted_speed).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
