"""Lets torchvision be imported where its wheel has no operators for this torch: `nms` is made here.

The wheels of the package index are for CUDA; models that detect need this one operator of theirs.
"""

import torch

_IOU = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def nms(boxes, scores, iou_threshold):
    """Return the boxes to keep, the best first: none overlaps a better one by more than that."""
    left, kept = scores.argsort(descending=True), []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        corner = torch.maximum(boxes[best, :2], boxes[left, :2])
        opposite = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (opposite - corner).clamp(min=0).prod(1)
        left = left[shared / (areas[best] + areas[left] - shared) <= iou_threshold]
    return torch.stack(kept) if kept else left


operators = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    operators.define(name + _IOU)
operators.impl("nms", nms, "CPU")

import torchvision  # noqa: E402 - it asks for the operators

torchvision.ops.nms = nms
