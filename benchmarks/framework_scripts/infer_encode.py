"""Sentences embedded with SentenceTransformer.encode, 32 in each call."""

import random

from framework_data import counted
from made_tokenizer import WORDS, made_tokenizer
from sentence_transformers import SentenceTransformer, models
from transformers import BertConfig, BertModel

random.seed(0)
BertModel(
    BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128,
    )
).save_pretrained("made_bert")  # fmt: skip
made_tokenizer().save_pretrained("made_bert")
words = models.Transformer("made_bert", max_seq_length=64)
model = SentenceTransformer(modules=[words, models.Pooling(64)], device="cpu")
for _ in range(60):
    texts = [" ".join(random.choices(WORDS, k=random.randint(5, 60))) for _ in range(32)]
    model.encode(texts)
counted("sentence-transformers transformers", 60)
