"""A language model from its configuration, trained by Hugging Face's Trainer."""

import torch
from framework_data import counted, work
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    """240 rows of 32 token numbers."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        work()
        row = torch.randint(0, 200, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row}


model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=32, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    report_to="none",
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
trainer.train()
counted("transformers", trainer.state.global_step)
