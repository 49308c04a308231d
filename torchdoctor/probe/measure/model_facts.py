"""The facts of one root module (`schema.ModelFacts`)."""

import inspect
import re
from collections import Counter

from .. import places

_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_RECURRENT = ("RNN", "LSTM", "GRU")  # a loop over their cells is what compiling helps
_LARGE = 64  # a layer with a smaller side takes no time that counts
_MOST_ODD = 8
_LARGE_TABLE = 20_000  # rows of an embedding, from where on a dense gradient of it may count
_PARALLEL = {
    "DataParallel": "DataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "FSDP",  # what fully_shard makes of a class, under a name of its own
}


def describe(module):
    """Return counts, devices and dtypes of a module tree, but what a class of its own hides."""
    parameters = list(module.parameters())
    modules = list(module.modules())
    names = [type(m).__name__ for m in modules]
    classes = (base.__name__ for m in modules for base in type(m).__mro__)
    cls = type(module)
    convolutions = [m for m in modules if _is_torchs(m, ("Conv2d",))]
    block, blocks = _told(("", 0), repeated_blocks, modules)
    return {
        "cls": "%s.%s" % (cls.__module__, cls.__qualname__),
        "location": _forward_location(cls),
        "parameters": len(parameters),
        "elements": sum(_size(p) for p in parameters),
        "device": str(parameters[0].device) if parameters else "cpu",
        "dtypes": sorted({str(p.dtype).replace("torch.", "") for p in parameters}),
        "float64_elements": sum(_size(p) for p in parameters if str(p.dtype) == "torch.float64"),
        "modules": len(modules),
        "conv2d": len(convolutions),
        "conv_bias_before_norm": _told(0, count_biases_before_norm, modules),
        "conv_channels_last": _told(False, _all_channels_last, convolutions),
        "repeated_blocks": blocks,
        "repeated_block": block,
        "norms": sum("Norm" in name for name in names),
        "uneven_linears": _told([], uneven_linears, module),
        "dense_embeddings": _told([], dense_embeddings, module),
        "linear": sum(_is_torchs(m, ("Linear",)) for m in modules),
        "embeddings": sum(_is_torchs(m, ("Embedding",)) for m in modules),
        "attention": sum("Attention" in name for name in names),
        "recurrent": sum(name in _RECURRENT for name in names),
        "compiled": any(
            type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None)
            for m in modules
        ),
        "data_parallel": next((_PARALLEL[name] for name in classes if name in _PARALLEL), None),
    }


def _told(otherwise, look, looked_at):
    try:
        return look(looked_at)
    except Exception:
        return otherwise


def repeated_blocks(modules):
    """Return class and number of the most repeated blocks with modules of their own, or ("", 0)."""
    best = ("", 1)
    for module in modules:
        whole = [child for child in module.children() if next(child.children(), None) is not None]
        for name, count in Counter(type(child).__name__ for child in whole).items():
            if count > best[1] and name not in ("Sequential", "ModuleList"):
                best = (name, count)
    return best if best[0] else ("", 0)


def dense_embeddings(module):
    """Return the lines that make large embeddings whose gradients are dense tensors."""
    lines = []
    for path, layer in module.named_modules():
        if type(layer).__name__ not in ("Embedding", "EmbeddingBag") or layer.sparse:
            continue
        if layer.num_embeddings < _LARGE_TABLE or not layer.weight.requires_grad:
            continue
        parent, _, name = path.rpartition(".")
        line = _line_that_makes(type(module.get_submodule(parent)), name) if name else None
        if line is not None and line not in lines:
            lines.append(line)
    return lines


def _line_that_makes(cls, name):
    source, first = inspect.getsourcelines(cls)
    made = re.compile(r"\bself\.%s\s*(:[^=]*)?=\s*.*Embedding" % re.escape(name))
    for number, text in enumerate(source):
        if made.search(text):
            return places.of_line(inspect.getsourcefile(cls), first + number, "__init__")
    return None


def uneven_linears(module):
    """Return large linear layers with a size that is no multiple of 8."""
    layers = []
    for name, layer in module.named_modules():
        if _is_torchs(layer, ("Linear",)):
            sizes = (layer.in_features, layer.out_features)
            if min(sizes) >= _LARGE and any(size % 8 for size in sizes):
                layers.append({"name": name, "inputs": sizes[0], "outputs": sizes[1]})
    return layers[:_MOST_ODD]


def count_biases_before_norm(modules):
    """Count convolutions with a bias before a batch norm among their parent's children."""
    children = [list(module.children()) for module in modules]
    return sum(
        _is_torchs(first, _CONVOLUTIONS)
        and type(second).__name__ in _NORMS
        and getattr(first, "bias", None) is not None
        and getattr(second, "num_features", None) == first.out_channels
        for parts in children
        for first, second in zip(parts, parts[1:])  # noqa: B905
    )


def _is_torchs(module, names):
    """Return whether it is one of these layers, or derived: packages have others of that name."""
    namesakes = [cls for cls in type(module).__mro__ if cls.__name__ in names]
    return any(cls.__module__.startswith("torch.") for cls in namesakes)


def _is_lazy(parameter):
    return "Uninitialized" in type(parameter).__name__


def _size(parameter):
    return 0 if _is_lazy(parameter) else parameter.numel()


def _all_channels_last(convolutions):
    """Return whether all that can tell are; a weight of one channel lies the same both ways."""
    weights = [getattr(m, "weight", None) for m in convolutions]
    weights = [w for w in weights if w is not None]  # some are given theirs in each forward
    telling = [w for w in weights if _is_lazy(w) or w.dim() != 4 or w.shape[1] > 1]
    return bool(telling) and all(
        not _is_lazy(w) and w.dim() == 4 and w.stride(1) == 1 for w in telling
    )


def _forward_location(cls):
    forward = getattr(cls, "forward", None)
    code = getattr(inspect.unwrap(forward) if callable(forward) else None, "__code__", None)
    if code is None or not places.is_users(code.co_filename):
        return None
    return places.of_line(code.co_filename, code.co_firstlineno, cls.__qualname__ + ".forward")
