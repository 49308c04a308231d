"""Graphs classified with torch_geometric, over its loader."""

import torch
from framework_data import counted
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, Sequential, global_mean_pool

torch.manual_seed(0)
graphs = [Data(x=torch.randn(30, 16), edge_index=torch.randint(0, 30, (2, 90)))] * 1920
model = Sequential(
    "x, edges, batch",
    [
        (GCNConv(16, 64), "x, edges -> x"),
        (GCNConv(64, 8), "x, edges -> x"),
        (global_mean_pool, "x, batch -> x"),
    ],
).eval()
loader = DataLoader(graphs, batch_size=32)
with torch.no_grad():
    for batch in loader:
        model(batch.x, batch.edge_index, batch.batch)
counted("torch_geometric", 60)
