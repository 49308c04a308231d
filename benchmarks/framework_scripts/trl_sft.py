"""Supervised fine-tuning with TRL's SFTTrainer on made-up text."""

import random

from datasets import Dataset
from framework_data import counted
from made_tokenizer import WORDS, made_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer

random.seed(0)
texts = [{"text": " ".join(random.choices(WORDS, k=24))} for _ in range(240)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=2))
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="out",
        per_device_train_batch_size=8,
        num_train_epochs=2,
        max_length=32,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list(texts),
    processing_class=made_tokenizer(),
)
trainer.train()
counted("trl transformers", trainer.state.global_step)
