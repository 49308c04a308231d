"""Deep Q-learning from a replay buffer."""

import argparse
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn


class Replay:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def add(self, *transition):
        self.memory.append(transition)

    def sample(self, size):
        chosen = random.sample(self.memory, size)
        states, actions, rewards, following = zip(*chosen)  # noqa: B905
        return (
            torch.from_numpy(np.stack(states)),
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.from_numpy(np.stack(following)),
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    replay = Replay(1_000_000)
    states = rng.standard_normal((5000, 8)).astype(np.float32)
    for i in range(1_000_000):  # what earlier episodes left
        replay.add(states[i % 5000], i % 4, 1.0, states[(i + 1) % 5000])
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    target = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    state, start = states[0], time.perf_counter()
    for step in range(args.steps):
        with torch.no_grad():
            action = int(network(torch.from_numpy(state)).argmax())
        following = states[rng.integers(5000)]
        replay.add(state, action, float(rng.random()), following)
        state = following
        s, a, r, s2 = replay.sample(256)
        with torch.no_grad():
            goal = r + 0.99 * target(s2).max(1).values
        loss = nn.functional.smooth_l1_loss(network(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            target.load_state_dict(network.state_dict())
            print(step + 1, float(loss))
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
