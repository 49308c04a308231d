"""Recordings written down with Whisper.transcribe of openai-whisper."""

import numpy as np
import torch
from framework_data import counted
from whisper.model import ModelDimensions, Whisper

torch.manual_seed(0)
model = Whisper(
    ModelDimensions(
        n_mels=80, n_audio_ctx=1500, n_audio_state=32, n_audio_head=2, n_audio_layer=1,
        n_vocab=51865, n_text_ctx=16, n_text_state=32, n_text_head=2, n_text_layer=1,
    )
).eval()  # fmt: skip
sounds = np.random.default_rng(0)
for _ in range(40):
    audio = sounds.standard_normal(16000).astype(np.float32)
    model.transcribe(audio, language="en", fp16=False, temperature=0.0)
counted("openai-whisper", 40)
