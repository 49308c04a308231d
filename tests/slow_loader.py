"""A program whose loader waits, so that workers help it on any machine."""

from light_torch import LIGHT

SLOW_LOADER = f"""
import time, torch
{LIGHT}from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index % 7)), torch.tensor([float(index % 3)])

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Slow(), batch_size=8, shuffle=True):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
