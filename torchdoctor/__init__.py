"""torchdoctor: why is this PyTorch training slow, what should change, and how much does it gain.

The command line is the product; in a training script only `torchdoctor.step()` is of use.
"""

import sys

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


def step(samples: int | None = None) -> None:
    """Mark the end of one training iteration in the program being measured.

    Overrules how `torchdoctor run` finds steps. Does nothing (one dictionary look-up) when the
    program runs without torchdoctor.

    Args:
        samples: how many samples the iteration used; None where it is not known.
    """
    attach = sys.modules.get("_torchdoctor_probe_attach")
    if attach is not None:
        attach.explicit_step(samples)
