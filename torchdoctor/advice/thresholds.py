"""What the pages say of a check's threshold: its figure with its unit, and where it is from."""

from __future__ import annotations

from types import ModuleType

_OWN = "torchdoctor"
_PYTORCH = "https://docs.pytorch.org/"
# By what THRESHOLD_SOURCE calls them.
_PUBLISHED = {
    "XProf": "https://github.com/openxla/xprof",
    "TensorBoard": "https://github.com/pytorch/kineto/tree/main/tb_plugin",
    "SageMaker": "https://docs.aws.amazon.com/sagemaker/latest/dg/"
    "debugger-built-in-profiler-rules.html",
    "Nsight Systems": "https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html",
    "TorchTidy": "https://github.com/pytorch/pytorch/pull/80108",
    "PyTorch Performance Tuning Guide": f"{_PYTORCH}tutorials/recipes/recipes/tuning_guide.html",
    "PyTorch documentation (torch.distributed)": f"{_PYTORCH}docs/stable/distributed.html",
    "PyTorch documentation (torch.compile)": f"{_PYTORCH}docs/stable/generated/torch.compile.html",
    "PyTorch documentation (DataParallel)": f"{_PYTORCH}docs/stable/generated/"
    "torch.nn.DataParallel.html",
    "channels-last tutorial": f"{_PYTORCH}tutorials/intermediate/memory_format_tutorial.html",
    "torch.utils.data": f"{_PYTORCH}docs/stable/data.html",
    "Matrix Multiplication Background": "https://docs.nvidia.com/deeplearning/performance/"
    "dl-performance-matrix-multiplication/index.html",
    "NVIDIA Ampere architecture": "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf",
}


def threshold(check: ModuleType) -> str:
    """Such as "20 % of the step" or "1 graph break"."""
    unit: str = check.THRESHOLD_UNIT
    return f"{check.THRESHOLD * 100 if unit.startswith('%') else check.THRESHOLD:.9g} {unit}"


def source(check: ModuleType) -> str:
    """Whose threshold it is, with the addresses of what others published, in parentheses."""
    said: str = check.THRESHOLD_SOURCE
    addresses = [url for name, url in _PUBLISHED.items() if name in said]
    if said.startswith(_OWN):
        said = f"{_OWN}'s own{said[len(_OWN) :]}"
    return f"{said} ({', '.join(addresses)})" if addresses else said


def faults(check: ModuleType) -> list[str]:
    """What is wrong with them, one sentence each."""
    said: str = check.THRESHOLD_SOURCE
    known = said.startswith(_OWN) or any(name in said for name in _PUBLISHED)
    return [] if known else [f"nobody published '{said}': see torchdoctor/thresholds.py."]
