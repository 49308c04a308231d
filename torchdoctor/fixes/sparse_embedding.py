"""Let a large embedding have gradients of the rows that were read, not of its whole table.

## What it does
Sets `sparse=True` on embeddings of 20,000 rows or more, whose gradients then hold the rows of the
batch alone. Only where the optimizer takes such gradients and leaves other rows as they are.

## Why it helps
A dense gradient is a tensor as large as the table: it is cleared, added to and read by the
optimizer in every step, for the few rows that a batch uses.

## Risks
Adam takes no sparse gradients; SparseAdam updates the moments of the rows that were read alone,
which is another training. Clipping gradients by their norm fails. Sums over a row that is read
several times may round differently.

## Make it permanent
    table = nn.Embedding(rows, width, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)   # or Adagrad, SparseAdam

## Sources
- PyTorch, nn.Embedding: https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
"""

from typing import Any

from torchdoctor.edits import KeywordEdit
from torchdoctor.queries.lookup import training_models
from torchdoctor.queries.touched import dense_gradients
from torchdoctor.schema import Evidence, Example, FixSpec, Location, Recording, Settings, fact

_ROWS = 20_000


def _lines(recording: Recording) -> list[Location]:
    return [line for model in training_models(recording) for line in model.dense_embeddings]


def refuses(recording: Recording) -> Evidence | None:
    if not _lines(recording):
        return fact("no-large-embedding")
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    changed: list[Any] = []

    def takes_sparse(optimizer: Any) -> bool:
        name = type(optimizer).__name__
        if name == "SGD":
            groups = optimizer.param_groups
            plain = all(not g["momentum"] and not g["weight_decay"] for g in groups)
            return plain and not any(g.get("fused") for g in groups)
        return name in ("Adagrad", "SparseAdam")

    def change(module: Any) -> None:
        tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        for layer in module.modules():
            if not isinstance(layer, tables) or layer.sparse or layer.num_embeddings < _ROWS:
                continue
            if not all(map(takes_sparse, program.optimizers())):
                program.refuse("takes-no-sparse-gradients")
            layer.sparse = True
            changed.append(layer)
            program.applied()

    def undo(module: Any) -> None:
        while changed:
            changed.pop().sparse = False

    program.set_reason("no-embedding-called")
    program.on_model(change, undo)


FIX: FixSpec = FixSpec(
    name="sparse embedding gradients",
    treats=("dense-embedding", "memset-share"),
    keeps_results="within rounding",
    when="between steps",
    p_helps=0.7,
    needs_finding=True,
    touches=dense_gradients,
    refuses=refuses,
    sentences={
        "no-large-embedding": "No large embedding with dense gradients was seen.",
        "takes-no-sparse-gradients": "Its optimizer takes no sparse gradients.",
        "no-embedding-called": "No large embedding was called.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=lambda recording: next(iter(_lines(recording)), None),
    instruction=lambda settings, recording: FIX.permanent_form,
    edits=lambda settings, recording: [
        KeywordEdit(
            file=line.file, line=line.line, callee="Embedding", keyword="sparse", value="True"
        )
        for line in _lines(recording)
    ],
    example=Example(
        code="""
model = torch.nn.Embedding(20_000, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
print("sparse:", model.weight.grad.is_sparse)
""",
        without="sparse: False",
        with_fix="sparse: True",
    ),
)
