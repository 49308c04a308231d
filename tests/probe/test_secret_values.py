"""Which values of a command line are secret."""

from __future__ import annotations

import pytest

from torchdoctor.probe import secret_values

COMMANDS = [
    (["train.py", "--hf-token", "hf_abcdef"], ["train.py", "--hf-token", "***"]),
    (["train.py", "--hf-token=hf_abcdef"], ["train.py", "--hf-token=***"]),
    (["train.py", "--api_key", "sk-123456", "--lr"], ["train.py", "--api_key", "***", "--lr"]),
    (["train.py", "-apiKey", "sk-12345678"], ["train.py", "-apiKey", "***"]),
    (["train.py", "--wandbKey=sk-12345678"], ["train.py", "--wandbKey=***"]),
    (["train.py", "--client-secret", "a b c"], ["train.py", "--client-secret", "***"]),
    (["train.py", "--db.password=x=y=z"], ["train.py", "--db.password=***"]),
    (["train.py", "trainer.logger.api_key=abcdefg"], ["train.py", "trainer.logger.api_key=***"]),
    (["env", "HF_TOKEN=abcdefg", "python"], ["env", "HF_TOKEN=***", "python"]),
    (["train.py", "--data", "https://me:geheim1@host/x"], ["train.py", "--data", "https://me:***@host/x"]),
    (["train.py", "--data=s3://me:geheim1@host/x"], ["train.py", "--data=s3://me:***@host/x"]),
    (["train.py", "--key", "k=k"], ["train.py", "--key", "***"]),
]  # fmt: skip
HARMLESS = [
    "train.py --tokenizer gpt2 --max-tokens 512 --num_tokens=1e9",
    "train.py --key_frames 3 --keyboard qwerty --keypoints=coco --keyword torch",
    "train.py --num-key-value-heads 4 --monkey patch",
    "train.py --token --verbose x",  # a switch, and another one
    "train.py --use-token true --passes 3 --compass north",
    "train.py --author me --url https://host:8080/x@y",
]


@pytest.mark.parametrize(("words", "shown"), COMMANDS)
def test_secret_values_are_hidden(words: list[str], shown: list[str]) -> None:
    assert secret_values.masked(words) == shown
    assert len(secret_values.values(words)) == 1


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_like_a_secret_stays(line: str) -> None:
    assert secret_values.masked(line.split()) == line.split()


def test_a_secret_is_hidden_wherever_it_stands_in_a_text() -> None:
    found = secret_values.values(["train.py", "--token", "abcdefgh", "--key", "x"])
    assert found == ["abcdefgh", "x"]
    text = "Namespace(token='abcdefgh', key='x')"
    assert secret_values.without(text, found) == "Namespace(token='***', key='x')"
