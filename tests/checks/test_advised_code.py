"""Code that pages advise runs as it is written there, and gives the results of what it replaces."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from torchdoctor.advice import catalogue


def advised(ident: str, begins: str) -> str:
    """Return the code of a page that begins so."""
    code = re.findall(r"`([^`]+)`", catalogue.explain(ident))
    return " ".join(next(x for x in code if x.startswith(begins)).split())


def test_an_order_is_drawn_from_any_weights() -> None:
    """Without their sum it drew the first samples alone, of weights that sum to more than 1."""
    weights = np.array([0.0, 10.0, 30.0, 0.0, 60.0])
    known: dict[str, Any] = {"np": np, "weights": weights}
    exec(advised("epoch-start", "sums ="), known)
    known |= {"n": 100_000, "rng": np.random.default_rng(0)}
    drawn = eval(advised("epoch-start", "np.searchsorted"), known)
    assert np.abs(np.bincount(drawn, minlength=5) / 1e5 - weights / weights.sum()).max() < 0.01


def test_batches_of_one_become_one_batch() -> None:
    """`torch.stack` made five dimensions of what the check sees, and convolutions refused them."""
    model = torch.nn.Conv2d(3, 4, 3)
    inputs = [torch.randn(1, 3, 8, 8) for _ in range(5)]
    for page in ("batch-of-one", "batched-inference"):
        assert "torch.cat(inputs)" in catalogue.explain(page)
    outputs = model(eval(advised("batch-of-one", "torch.cat"), {"torch": torch, "inputs": inputs}))
    torch.testing.assert_close(outputs, torch.cat([model(x) for x in inputs]))
    rows = [x[0] for x in inputs]
    stacked = eval(advised("batch-of-one", "torch.stack"), {"torch": torch, "inputs": rows})
    torch.testing.assert_close(model(stacked), outputs)


def test_results_of_sorted_texts_come_back_in_their_own_order() -> None:
    tokenized = [[3, 1, 2], [5], [1, 1, 1, 1, 7], [2, 2]] * 20  # more than one batch
    lengths: list[int] = []  # of batches

    def collate(texts: list[list[int]]) -> torch.Tensor:
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True)
        lengths.append(rows.shape[1])
        return rows

    known: dict[str, Any] = {
        "DataLoader": torch.utils.data.DataLoader,
        "dataset": tokenized,
        "tokenized": tokenized,
        "collate": collate,
        "model": lambda rows: rows.sum(1).tolist(),
    }
    exec(catalogue.fixes()["sorted-batches"].permanent_form, known)
    assert known["results"] == [sum(text) for text in tokenized]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
