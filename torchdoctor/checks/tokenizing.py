"""Texts are tokenized by one thread, in the loop.

## What it means
A tokenizer that is written in Python handles one text after the other, many times slower than one
in Rust; with `TOKENIZERS_PARALLELISM=false` that one uses a single thread too. The model waits.

## What to do
Use the fast tokenizer of the model (`AutoTokenizer.from_pretrained(name)`; `tokenizer.is_fast` must
be true), give it a list of texts at once, and leave `TOKENIZERS_PARALLELISM` out or set it to
`true`. Where only a Python one exists, tokenize in workers of a DataLoader, or once beforehand.

## How it is measured
Sampled stacks of the main thread: those within a tokenizer, among all samples of the steps. Which
libraries' files are Python's is known by their names; of the program's own functions, those that
are named after it count.

## Not to be confused with
A fast tokenizer that gets one text a call: no setting makes it use more threads.
"""

import re

from torchdoctor.queries.hot_calls import is_sampled_enough, sampled_share
from torchdoctor.queries.stacks import by_line
from torchdoctor.schema import CheckSpec, Recording, StackSample, Symptom, Symptoms, fact, process

_FAST = re.compile(r"tokenization_utils_(fast|tokenizers)\.py |tokenizers/implementations/")
_FAST_LINE = re.compile(r"\.encode_batch(_fast)?\(")
_SLOW = re.compile(r"(^|/)(tokenization_(?!utils_base)\w+|simple_tokenizer)\.py |nltk/tokenize/")
_OWN = re.compile(r"tokeni[sz]|word_?piece|(^|_)bpe(_|$)", re.IGNORECASE)
_OFF = ("", "0", "f", "n", "no", "off", "false")
_PARALLEL = 2  # CPUs


def _is_fast(row: StackSample) -> bool:
    return bool(_FAST.search(row.leaf) or _FAST_LINE.search(row.text))


def _is_slow(row: StackSample) -> bool:
    if _is_fast(row):
        return False
    return bool(_SLOW.search(row.leaf) or _OWN.search(row.location.function or ""))


def _examine(recording: Recording) -> Symptoms:
    setting = recording.main.flags.environment.get("TOKENIZERS_PARALLELISM")
    off = setting is not None and setting.lower() in _OFF
    several = recording.environment.cpus >= _PARALLEL
    stacks = recording.main.stacks
    slow = [row for row in stacks if _is_slow(row)]
    fast = [row for row in stacks if _is_fast(row)] if off and several else []
    for kind, rows in (("slow", slow), ("off", fast)):
        share = sampled_share(recording, rows) if is_sampled_enough(recording) else 0.0
        if share < CHECK.threshold:
            continue
        top = by_line(rows)[0].top
        where = top.location
        text = top.text or None
        evidence = fact(kind, share=share, location=where, text=text, setting=setting or "empty")
        yield Symptom(share=share, evidence=evidence, location=where)


_LINE = {"file": "/w/infer.py", "line": 12, "function": "main"}
_SLOW_ROW = {
    "location": _LINE,
    "phase": "before_forward",
    "count": 30,
    "leaf_file": "models/bert/tokenization_bert_legacy.py",
    "leaf_function": "tokenize",
    "text": "batch = tokenizer(texts, return_tensors='pt')",
}
_FAST_ROW = {
    **_SLOW_ROW,
    "leaf_file": "transformers/tokenization_utils_tokenizers.py",
    "leaf_function": "_encode_plus",
}
_MODEL_ROW = {
    "location": {**_LINE, "line": 13},
    "phase": "forward",
    "count": 70,
    "leaf_file": "nn/modules/linear.py",
    "leaf_function": "forward",
    "text": "model(**batch)",
}
_OFF_FLAG = {"environment": {"TOKENIZERS_PARALLELISM": "false"}}
_TWO_CPUS = {"environment": {"usable_cpus": 2.0}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: from there on an experiment on a call may show something",
    sentences={
        "slow": "A tokenizer written in Python takes {share:.0%} of {each_step}, in one thread, "
        "most often at {location:place}[ ({text})].",
        "off": "Tokenizing takes {share:.0%} of {each_step} at {location:place}[ ({text})], in one "
        "thread: TOKENIZERS_PARALLELISM is {setting}.",
    },
    examine=_examine,
    fires=[
        process(stacks=[_SLOW_ROW, _MODEL_ROW]),
        {**_TWO_CPUS, **process(stacks=[_FAST_ROW, _MODEL_ROW], flags=_OFF_FLAG)},
    ],
    quiet=[
        process(stacks=[{**_SLOW_ROW, "count": 2}, _MODEL_ROW]),
        {**_TWO_CPUS, **process(stacks=[_FAST_ROW, _MODEL_ROW])},
        {
            "environment": {"usable_cpus": 1.0},
            **process(stacks=[_FAST_ROW, _MODEL_ROW], flags=_OFF_FLAG),
        },
        {**_TWO_CPUS, **process(stacks=[_MODEL_ROW], flags=_OFF_FLAG)},
    ],
)
