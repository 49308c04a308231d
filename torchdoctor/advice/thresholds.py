"""Write a check's threshold for its page: the figure with its unit, and its source."""

from __future__ import annotations

from torchdoctor.words.specs import CheckSpec

_OWN = "torchdoctor"
_PYTORCH = "https://docs.pytorch.org/"
# By the name that `CheckSpec.source` has for them.
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


def threshold(check: CheckSpec) -> str:
    """Return the threshold in words, such as "20 % of the step" or "1 graph break"."""
    factor = 100 if check.unit.startswith("%") else 1
    return f"{check.threshold * factor:.9g} {check.unit}"


def source(check: CheckSpec) -> str:
    """Return the source of the threshold, with the addresses of publications in parentheses."""
    source = check.source
    addresses = [url for name, url in _PUBLISHED.items() if name in source]
    if source.startswith(_OWN):
        source = f"{_OWN}'s own{source[len(_OWN) :]}"
    return f"{source} ({', '.join(addresses)})" if addresses else source


def faults(check: CheckSpec) -> list[str]:
    """Return a sentence for a source that nobody published; [] where there is none."""
    known = check.source.startswith(_OWN) or any(name in check.source for name in _PUBLISHED)
    return [] if known else [f"nobody published '{check.source}': see {__name__}."]
