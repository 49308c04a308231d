"""Objects found in images by ultralytics' `predict`, one image in each call."""

import numpy as np
import torch
import torchvision_on_cpu  # noqa: F401 - before ultralytics, which calls torchvision's nms
from framework_data import counted
from ultralytics import YOLO

torch.manual_seed(0)
model = YOLO("yolov8n.yaml")
random = np.random.default_rng(0)
images = [random.integers(0, 255, (160, 160, 3), dtype=np.uint8) for _ in range(8)]
for number in range(60):
    model.predict(images[number % len(images)], imgsz=160, verbose=False)
counted("ultralytics", 60)
