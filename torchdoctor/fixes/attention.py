"""Fused attention: scaled dot product attention in place of products and softmax.

## What it does
It gives the call to write, or the framework's switch; torch-compile is tried for the same finding.

## Why it helps
The matrix of sequence by sequence, for every head, stays in registers instead of memory.

## Risks
Sums are formed in another order. A mask has to be given as attn_mask or is_causal. Code that wants
the attention weights cannot have them.

## Make it permanent
    # where each position sees only those before it: is_causal=True; another mask: attn_mask=
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    # transformers
    model = AutoModel.from_pretrained(name, attn_implementation="sdpa")
    # torch.nn.MultiheadAttention
    out, _ = attention(x, x, x, need_weights=False)

## Sources
- Dao et al., FlashAttention: https://arxiv.org/abs/2205.14135
"""

from torchdoctor.checks import unfused_attention
from torchdoctor.queries.touched import attention
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, process, trace


def refuses(recording: Recording) -> Evidence | None:
    if recording.trace is None:
        return fact("operators-unmeasured")
    if not unfused_attention.CHECK.findings(recording):
        return fact("no-unfused-attention")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    if "transformers" in recording.main.frameworks:
        return 'AutoModel....from_pretrained(..., attn_implementation="sdpa")'
    return (
        "# a causal mask: is_causal=True; another: attn_mask=allowed, bool (True: may be seen).\n"
        "# A mask of 0 and 1 in floats would be added to the scores: give mask.bool().\n"
        "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    )


_SLOW = next(iter(unfused_attention.CHECK.fires), {})

FIX = FixSpec(
    name="fused attention",
    treats=("unfused-attention",),
    keeps_results="within rounding",
    touches=attention,
    untried="only the source tells queries, keys and mask apart; torch-compile is tried.",
    refuses=refuses,
    sentences={
        "operators-unmeasured": "Operators were not measured: that needs the profiler window.",
        "no-unfused-attention": "No attention that is computed operator by operator takes a share "
        "that counts.",
    },
    instruction=instruction,
    offers=[
        (_SLOW, "scaled_dot_product_attention(q"),
        ({**_SLOW, **process(frameworks=["transformers"])}, "sdpa"),
    ],
    refusals=[({}, "operators-unmeasured"), (trace(), "no-unfused-attention")],
)
