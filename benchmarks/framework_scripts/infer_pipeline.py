"""Texts classified one by one with a `pipeline` of transformers, as a request would be."""

import random

from framework_data import counted
from made_tokenizer import WORDS, made_tokenizer
from transformers import BertConfig, BertForSequenceClassification, pipeline

random.seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128,
    )
)  # fmt: skip
classify = pipeline("text-classification", model=model, tokenizer=made_tokenizer(), device=-1)
for _ in range(200):
    classify(" ".join(random.choices(WORDS, k=random.randint(5, 40))))
counted("transformers", 200)
