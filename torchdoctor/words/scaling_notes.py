"""What the fields of the prediction for more GPUs mean: a part of `field_notes.py`."""

from __future__ import annotations

NOTES: dict[str, dict[str, str]] = {
    "Scaling": {
        "rows": "One number of GPUs each; empty where something is missing.",
        "gradient_bytes": "Bytes of all gradients of a step; null: not known.",
        "gradients_from": 'Where that is known from: "all-reduce", "reduce-scatter" or "backward" of the trace, "program" (what its optimizers update).',
        "last_bytes": "Bytes that are exchanged when the backward pass is over: the last bucket.",
        "alone_s": "A step without any exchange, in seconds.",
        "backward_s": "The part of it from the first to the last kernel of the backward pass.",
        "low_bytes_per_s": "The slowest link assumed, in one direction; null: not known.",
        "high_bytes_per_s": "The fastest link assumed.",
        "links_from": '"collectives" of the trace, or "data sheet" of the GPU.',
        "links_of": "The GPU as the table of data sheets names it; null: not listed.",
        "ranks": "Processes that the trace was recorded among; null: one.",
        "sheet_low_s": "The exchange of those ranks by the data sheet's fastest link, in seconds per step.",
        "sheet_high_s": "The same by a slow one.",
        "measured_exchange_s": "How long their exchange really took per step, waits included.",
        "loader_share": "Share of the step that waits for data, which the prediction leaves as it is.",
        "missing": "What a prediction would have needed and was not known.",
    },
    "ScalingRow": {
        "gpus": "All GPUs together.",
        "machines": "Machines that they are in.",
        "network_gbit_per_s": "Assumed speed of each machine's network; null: one machine.",
        "ddp": "With DistributedDataParallel.",
        "fsdp": "With fully sharded data parallel.",
    },
    "PredictedSpeedup": {
        "low": "Samples per second against one GPU, with the slowest link assumed.",
        "high": "With the fastest.",
    },
}
