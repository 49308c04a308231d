"""Graphs classified with torch_geometric, over its loader."""

import torch
from framework_data import counted
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(0)
graphs = [Data(x=torch.randn(30, 16), edge_index=torch.randint(0, 30, (2, 90)))] * 1920


class Net(nn.Module):
    """Two graph convolutions."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(16, 64), GCNConv(64, 8)

    def forward(self, x, edges, batch):
        return global_mean_pool(self.conv2(self.conv1(x, edges).relu(), edges), batch)


model = Net().eval()
loader = DataLoader(graphs, batch_size=32)
with torch.no_grad():
    for batch in loader:
        model(batch.x, batch.edge_index, batch.batch)
counted("torch_geometric", 60)
