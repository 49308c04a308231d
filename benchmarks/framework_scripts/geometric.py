"""Classification of graphs with torch_geometric, as its introduction by example has it."""

import torch
from framework_data import counted, work
from torch import nn
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Graphs(Dataset):
    """240 rings of 30 nodes."""

    def len(self):
        return 240

    def get(self, index):
        work()
        source = torch.arange(30)
        edges = torch.stack([source, (source + 1 + index % 5) % 30])
        return Data(x=torch.randn(30, 16), edge_index=edges, y=index % 5)


class GCN(nn.Module):
    """Two graph convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(16, 64)
        self.conv2 = GCNConv(64, 64)
        self.linear = nn.Linear(64, 5)

    def forward(self, x, edge_index, batch):
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index).relu()
        return self.linear(global_mean_pool(x, batch))


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Graphs(), batch_size=16, shuffle=True)
steps = 0
for _ in range(2):
    for data in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        steps += 1
counted("torch_geometric", steps)
