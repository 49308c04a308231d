"""Node classification with a graph convolutional network, whole graph in each step."""

import argparse
import time

import torch
from torch import nn


def normalized_adjacency(edges, nodes):
    loops = torch.arange(nodes).repeat(2, 1)
    index = torch.cat([edges, edges.flip(0), loops], 1)
    adjacency = torch.sparse_coo_tensor(
        index, torch.ones(index.shape[1]), (nodes, nodes)
    ).coalesce()
    rows, columns = adjacency.indices()
    degree = torch.zeros(nodes).index_add_(0, rows, adjacency.values())
    scale = degree.pow(-0.5)
    values = scale[rows] * adjacency.values() * scale[columns]
    return (
        torch.sparse_coo_tensor(adjacency.indices(), values, (nodes, nodes))
        .coalesce()
        .to_sparse_csr()
    )


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        adjacency = normalized_adjacency(edges, x.shape[0])
        return adjacency @ self.linear(x)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConv(32, 32), GraphConv(32, 7)

    def forward(self, x, edges):
        return self.second(torch.relu(self.first(x, edges)), edges)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    nodes = 10_000
    edges = torch.randint(0, nodes, (2, 60_000))
    x, y = torch.randn(nodes, 32), torch.randint(0, 7, (nodes,))
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for epoch in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edges), y)
        loss.backward()
        optimizer.step()
        if epoch % 100 == 99:
            print(epoch + 1, float(loss))
    print(f"seconds {time.perf_counter() - start:.3f}")


if __name__ == "__main__":
    main()
