"""Large language-like model step with everything already in order.

Illness: none. Matrix products in bfloat16 fill the step, batches are ready in memory, the optimizer
    is fused; a GPU is fed by workers from pinned memory.
Check expected: none
Bottleneck expected: cpu; on a GPU: gpu
Fix expected: none
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = 8192
WIDTH = 1024
HIDDEN = 4096
BATCH = 512


class ReadyRows(Dataset):
    """A table that is in memory already; a whole batch is one indexing operation."""

    def __init__(self) -> None:
        self.rows = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)

    def __len__(self) -> int:
        return ROWS

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self.rows[rows]


def take_whole(batch: torch.Tensor) -> torch.Tensor:
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    torch.set_float32_matmul_precision("high")

    # Without a GPU workers would take cores from the model, and the batches cost nothing.
    loader = DataLoader(
        ReadyRows(),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=take_whole,
        pin_memory=on_gpu,
        num_workers=2 if on_gpu else 0,
        persistent_workers=on_gpu,
    )
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, WIDTH))
    model = model.to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    step = 0
    while step < steps:
        for rows in loader:
            rows = rows.to(device, non_blocking=True)
            loss = nn.functional.mse_loss(model(rows), rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == steps:
                break


if __name__ == "__main__":
    main()
