"""A tokenizer made on the spot: no hub is reached."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = [f"word{number}" for number in range(196)]


def made_tokenizer():
    """Return a tokenizer of 200 whole words."""
    vocabulary = {word: at for at, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    )
