"""Programs under test that start sooner: they leave out what torch imports for compilers.

Optimizers and DistributedDataParallel import torch._dynamo, and so does a profiler, which asks
torch for _inductor: a second in each launch, as long as `import torch` takes. They are torch's own
all the same, and find in its place what they ask it for.
"""

# At the start of a program: starting it is dear then, for a run of a minute, which profiles at the
# end of the launch that it observes, and makes no other. Sleeping takes no processor.
STARTS_LATE = "__import__('time').sleep(6)\n"
# To stand before `import torch`, which takes a quarter less without the shapes that operators give
# tensors without data. With them it does without `torch.Generator`: not for a loader that shuffles.
# No launch is forked from a program that does so much first: for those alone that are not forked.
BEFORE_TORCH = (
    "import sys, types; sys.modules.setdefault('torch._meta_registrations', "
    "types.ModuleType('torch._meta_registrations'))\n"
)
# One line, to stand after `import torch`. A program whose text has TORCH in it gets a warm image
# without torch._dynamo too.
LIGHT = (
    "import sys; from types import SimpleNamespace as has; "
    "sys.modules.setdefault('torch._dynamo', has("
    "disable=lambda call, *_, **__: call, graph_break=lambda: None, "
    "utils=has(get_optimize_ddp_mode=lambda: 'ddp_optimizer'), "
    "trace_rules=has(clear_lru_cache=lambda: None, LEGACY_MOD_INLINELIST=set(), "
    "get_legacy_mod_inlinelist=has(cache_clear=lambda: None)))); "
    "torch._lazy_modules.discard('_inductor')  # TORCH\n"
)
