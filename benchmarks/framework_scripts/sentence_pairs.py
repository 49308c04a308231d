"""Sentence embeddings trained with SentenceTransformerTrainer on made-up pairs."""

import random

from datasets import Dataset
from framework_data import counted
from made_tokenizer import WORDS, made_tokenizer
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from transformers import BertConfig, BertModel

random.seed(0)
BertModel(
    BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128,
    )
).save_pretrained("made_bert")  # fmt: skip
made_tokenizer().save_pretrained("made_bert")
words = models.Transformer("made_bert", max_seq_length=32)
model = SentenceTransformer(modules=[words, models.Pooling(64)], device="cpu")
rows = {
    name: [" ".join(random.choices(WORDS, k=12)) for _ in range(480)]
    for name in ("anchor", "positive")
}
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,
        num_train_epochs=2,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_dict(rows),
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.train()
counted("sentence-transformers transformers", trainer.state.global_step)
