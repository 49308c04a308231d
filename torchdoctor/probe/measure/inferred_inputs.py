"""What the inputs of a model show: padding, and sequences that grow by one a call.

Looked at in the first calls of the observing launch alone.
"""

from .nested import holds_numbers

_MOST_CALLS = 128
_MOST_TRAINING_CALLS = 16  # padding is of the data, and looking holds the device up


class InferredInputs:
    """The first matrix of whole numbers that each call of one root module gets: its tokens."""

    def __init__(self, torch):
        self._torch = torch
        self._calls = {False: 0, True: 0}  # by whether they train
        self.grown = 0  # calls with the last one's tokens and one more
        self._last = None
        self._tokens = self._padding = self._common = 0
        self._token = 0  # that pads

    def look(self, module, args, kwargs, trains=False):
        """Take in the inputs of a call, one of a training if it `trains`."""
        self._calls[trains] += 1
        if self._calls[trains] > (_MOST_TRAINING_CALLS if trains else _MOST_CALLS):
            self._last = None
            return
        values = (*args, *kwargs.values())
        tokens = next((value for value in values if self._is_tokens(value)), None)
        if tokens is None:
            return
        last, self._last = self._last, tokens
        if last is not None and self._grew(last, tokens):
            self.grown += 1
        # A tensor that the program writes to later would no longer be what it was.
        self._last = tokens.detach().clone()
        self._token = padding_of(module, self._torch)
        self._count(tokens, self._token)

    def _is_tokens(self, value):
        torch = self._torch
        if not isinstance(value, torch.Tensor) or not holds_numbers(value, torch):
            return False
        whole = value.dtype in (torch.int64, torch.int32)
        return whole and value.dim() == 2 and value.numel() > 0

    def _grew(self, last, tokens):
        alike = len(last) == len(tokens) and tokens.shape[1] == last.shape[1] + 1
        return alike and last.dtype == tokens.dtype and bool((tokens[:, :-1] == last).all())

    def _count(self, tokens, padding):
        is_token = (tokens != padding).to("cpu")
        rows, length = tokens.shape
        places = self._torch.arange(1, length + 1)
        ends = (is_token * places).amax(1)  # of each row, behind its last token
        self._tokens += rows * length
        self._padding += int((length - ends).sum())
        self._common += rows * int(length - ends.max())

    def facts(self):
        """Return fields of `schema.ModelFacts`."""
        tokens = self._tokens
        return {
            "padding_share": self._padding / tokens if tokens else None,
            "common_padding_share": self._common / tokens if tokens else None,
            "padding_token": self._token,
            "grown_calls": self.grown,
        }


def padding_of(module, torch):
    """Return the token that a model's embedding takes for padding; 0 where it says none."""
    embeddings = (layer for layer in module.modules() if isinstance(layer, torch.nn.Embedding))
    return next(
        (embedding.padding_idx for embedding in embeddings if embedding.padding_idx is not None), 0
    )


def mode_dependent(modules, torch):
    """Return classes of layers that compute something else in training mode."""
    norms = torch.nn.modules.batchnorm._NormBase
    dropout = torch.nn.modules.dropout._DropoutNd
    names = (
        type(module).__name__
        for module in modules
        if (isinstance(module, norms) and getattr(module, "track_running_stats", False))
        or (isinstance(module, dropout) and module.p > 0)
        or (isinstance(module, torch.nn.MultiheadAttention) and module.dropout > 0)
    )
    return sorted(set(names))
