"""A recipe of torchtune's kind: its model, loss and collation, in a class that owns the loop."""

import torch
from framework_data import counted, work
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtune import training
from torchtune.data import padded_collate_sft
from torchtune.models.llama3 import llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.recipe_interfaces import FTRecipeInterface


class Tokens(Dataset):
    """240 rows of 16 to 32 token numbers."""

    def __len__(self):
        return 240

    def __getitem__(self, index):
        work()
        generator = torch.Generator().manual_seed(index)
        row = torch.randint(1, 200, (16 + index % 17,), generator=generator).tolist()
        return {"tokens": row, "labels": row}


class Recipe(FTRecipeInterface):
    """Full fine-tuning on a single device, with gradients accumulated over two batches."""

    def load_checkpoint(self):
        """Start from random weights."""

    def save_checkpoint(self):
        """Keep nothing."""

    def cleanup(self):
        """Close nothing."""

    def setup(self):
        self.model = llama3(
            vocab_size=200, num_layers=2, num_heads=2, num_kv_heads=2, embed_dim=64, max_seq_len=64
        )
        self.loss_fn = CEWithChunkedOutputLoss()
        self.model.set_num_output_chunks(self.loss_fn.num_output_chunks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.dataloader = StatefulDataLoader(
            Tokens(), batch_size=8, shuffle=True, collate_fn=padded_collate_sft
        )
        self.global_step = 0

    def train(self):
        tokens = 0
        for _ in range(2):
            for index, batch in enumerate(self.dataloader):
                labels = batch.pop("labels")
                counted_tokens = (labels != self.loss_fn.ignore_index).sum()
                tokens += counted_tokens
                labels = torch.hstack((labels[..., 1:], labels[..., :1]))
                loss = self.loss_fn(self.model(**batch), labels) * counted_tokens
                loss.backward()
                if (index + 1) % 2 == 0:
                    training.scale_grads(self.model, 1 / tokens)
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                    self.global_step += 1
                    tokens = 0


recipe = Recipe()
recipe.setup()
recipe.train()
recipe.cleanup()
counted("torchtune", recipe.global_step)
