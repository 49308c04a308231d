"""Clicks predicted with TorchRec's DLRM, over a loader of dense and sparse features."""

import torch
from framework_data import counted
from torch.utils.data import DataLoader
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

ROWS, BATCHES = 10_000, 60
NAMES = [f"categorical_{number}" for number in range(8)]


def collate(samples):
    """Return the dense features, and the sparse ones by name and sample."""
    dense, sparse = torch.stack([x for x, _ in samples]), torch.stack([x for _, x in samples], 1)
    lengths = torch.ones(sparse.numel(), dtype=torch.int32)
    return dense, KeyedJaggedTensor(NAMES, sparse.flatten(), lengths=lengths)


torch.manual_seed(0)
size = 128 * BATCHES
samples = list(zip(torch.rand(size, 13), torch.randint(ROWS, (size, len(NAMES))), strict=True))
tables = [
    EmbeddingBagConfig(name=f"t_{x}", embedding_dim=32, num_embeddings=ROWS, feature_names=[x])
    for x in NAMES
]
model = DLRM(
    EmbeddingBagCollection(tables=tables), dense_in_features=13,
    dense_arch_layer_sizes=[128, 32], over_arch_layer_sizes=[128, 64, 1],
).eval()  # fmt: skip
clicks = []
with torch.no_grad():
    for dense, sparse in DataLoader(samples, batch_size=128, collate_fn=collate):
        clicks.append(model(dense, sparse).sigmoid())
counted("torchrec", len(clicks))
