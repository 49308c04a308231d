"""Images drawn with a pipeline of diffusers, ten steps of noise each."""

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from framework_data import counted

torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=16, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
)  # fmt: skip
draw = DDPMPipeline(unet, DDPMScheduler())
draw.set_progress_bar_config(disable=True)
for _ in range(40):
    draw(batch_size=2, num_inference_steps=10)
counted("diffusers", 40)
