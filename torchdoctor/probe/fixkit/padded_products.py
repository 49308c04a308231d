"""The program's own matrix products and convolutions against padded ones, each timed alone.

After the analysed steps, where nothing else is timed: in the sizes and the precision of the
profiler window, by turns, so that what slows the machine down slows both.
"""

import math
import time
from collections import Counter

# Bytes that a row should be a multiple of: what a tensor core's fast kernels need, what they like
# best since compute capability 8.0, and what a vector register of AVX-512 holds.
_BYTES_GPU = 16
_BYTES_AMPERE = 128
_BYTES_CPU = 64
_DTYPES = {"float": ("float32", 4), "c10::Half": ("float16", 2), "c10::BFloat16": ("bfloat16", 2)}
_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_CONVOLUTION = "aten::convolution"
_MOST_GROWTH = 0.125  # padding that adds more arithmetic than this is no padding
_LEAST_FLOPS = 1e6  # a smaller product takes no time
_MOST = 4  # products
_ROUNDS = 12
_SAMPLE_S = 0.004
_MOST_S = 1.5  # for one product
_LONGEST_CALL_S = 0.1  # one that takes longer is not called dozens of times
_MOST_ALL_S = 6.0
_MOST_BYTES = 2**28  # of one product's tensors


class PaddedProducts:
    """Products of the window whose sizes are uneven, with their times and those of padded ones."""

    def __init__(self, session):
        self._session = session
        self._torch = session.torch
        self._wanted = []  # (operator, sizes, dtype, per step)
        self._rows = []

    def note(self, profiler, steps):
        """Note sizes of the calls in a profiler window that has ended, with `steps` steps in it."""
        calls = Counter()
        for event in profiler.profiler.kineto_results.events():
            if event.name() in _FACTORS or event.name() == _CONVOLUTION:
                try:
                    calls[_sizes_of(event)] += 1
                except (TypeError, ValueError, IndexError):
                    continue  # arguments that this torch records otherwise
        calls.pop(None, None)
        ranked = sorted(calls, key=lambda key: -calls[key] * _flops(key[0], key[1]))
        self._wanted = [(*key, calls[key] / max(steps, 1)) for key in ranked]

    def measure(self):
        """Time the products that take most; leave out what cannot be timed."""
        accelerator = self._session.accelerator
        device = accelerator.type if accelerator.is_used() else "cpu"
        if device == "cpu":
            self._measure_on("cpu")
        elif device == "cuda":  # which sizes suit others is not known
            with self._torch.cuda.device(accelerator.most_used()):
                self._measure_on("cuda")

    def _measure_on(self, device):
        began = time.perf_counter()
        for operator, sizes, dtype, calls in self._wanted:
            if len(self._rows) >= _MOST or time.perf_counter() - began > _MOST_ALL_S:
                break
            precision, itemsize = _DTYPES[dtype]
            padded, named = _padded(operator, sizes, self._multiple_bytes(device) // itemsize)
            too_large = _elements(operator, padded) * itemsize * 2 > _MOST_BYTES
            if not named or too_large or _flops(operator, sizes) < _LEAST_FLOPS:
                continue
            try:
                ratios, alone_s = self._compare(operator, sizes, padded, precision, device)
            except RuntimeError as error:  # out of memory, or no kernel for it
                self._session.fail("padded_products", error)
                continue
            if ratios:
                row = {"operator": operator, "sizes": _written(operator, sizes)}
                row.update(
                    padded_sizes=named, precision=precision, device=device, calls_per_step=calls
                )
                self._rows.append({**row, "alone_s": alone_s, "speedups": ratios})

    def _multiple_bytes(self, device):
        if device == "cpu":
            return _BYTES_CPU
        ampere = (self._session.accelerator.capability() or (0, 0)) >= (8, 0)
        return _BYTES_AMPERE if ampere else _BYTES_GPU

    def _compare(self, operator, sizes, padded, dtype, device):
        """Return the ratio of times by round, and seconds alone; [] where one call is too long."""
        torch = self._torch
        with torch.no_grad(), torch.autocast(device, enabled=False):
            both = [self._call(operator, size, dtype, device) for size in (sizes, padded)]
            slowest_s = max(self._time(call, 1, device) for call in both for _ in range(2))
            if slowest_s > _LONGEST_CALL_S and self._time(both[0], 1, device) > _LONGEST_CALL_S:
                return [], 0.0
            number = max(1, int(_SAMPLE_S / max(self._time(both[0], 1, device), 1e-7)))
            began = time.perf_counter()
            rounds = []
            for turn in range(_ROUNDS):
                order = both if turn % 2 else both[::-1]
                took = {call: self._time(call, number, device) / number for call in order}
                rounds.append([took[call] for call in both])
                if turn >= 3 and time.perf_counter() - began > _MOST_S:
                    break
        alone_s = sorted(first for first, _ in rounds)[len(rounds) // 2]
        return [first / second for first, second in rounds], alone_s

    def _call(self, operator, sizes, dtype, device):
        torch = self._torch
        made = {"dtype": getattr(torch, dtype), "device": device}
        if operator == _CONVOLUTION:
            (batch, channels, *image), outputs, kernel, stride, padding, dilation = sizes
            images = torch.randn(batch, channels, *image, **made)
            weight = torch.randn(outputs, channels, *kernel, **made)
            function = getattr(torch.nn.functional, "conv%dd" % len(image))
            return lambda: function(
                images, weight, stride=stride, padding=padding, dilation=dilation
            )
        batch, rows, inner, columns, turned = sizes
        lead = (batch,) if batch else ()
        left = torch.randn(*lead, rows, inner, **made)
        right = torch.randn(*lead, *((columns, inner) if turned else (inner, columns)), **made)
        right = right.transpose(-1, -2) if turned else right
        return lambda: torch.matmul(left, right)

    def _time(self, call, number, device):
        if device == "cpu":
            began = time.perf_counter()
            for _ in range(number):
                call()
            return time.perf_counter() - began
        cuda = self._torch.cuda
        begin = cuda.Event(enable_timing=True)
        end = cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(number):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def facts(self):
        """Return `padded_products` of the process facts."""
        return {"padded_products": self._rows}


def _sizes_of(event):
    """Return (operator, sizes, dtype) of a call; None: it is none that can be made again."""
    operator = event.name()
    shapes = event.shapes()
    dtypes = event.dtypes()
    if operator == _CONVOLUTION:
        image, weight = shapes[:2]
        stride, padding, dilation, transposed, _, groups = event.concrete_inputs()[3:9]
        is_known_dtype = dtypes[0] in _DTYPES and dtypes[0] == dtypes[1]
        if (
            transposed
            or groups != 1
            or not is_known_dtype
            or not 3 <= len(image) <= 5
            or 0 in image
        ):
            return None
        numbers = (tuple(stride), tuple(padding), tuple(dilation))
        return operator, (tuple(image), weight[0], tuple(weight[2:]), *numbers), dtypes[0]
    first = _FACTORS[operator]
    left, right = shapes[first : first + 2]
    batched = len(left) == 3
    if len(left) not in (2, 3) or len(left) != len(right) or 0 in (*left, *right):
        return None
    if dtypes[first] not in _DTYPES or dtypes[first] != dtypes[first + 1]:
        return None
    turned = operator == "aten::addmm"  # the weight of a linear layer
    strides = getattr(event, "structured_input_strides", list)()
    if len(strides) > first + 1 and len(strides[first + 1]) == len(right):
        turned = strides[first + 1][-2] == 1 and strides[first + 1][-1] != 1
    sizes = (left[0] if batched else 0, left[-2], left[-1], right[-1], turned)
    return operator, sizes, dtypes[first]


def _flops(operator, sizes):
    if operator != _CONVOLUTION:
        return 2.0 * max(sizes[0], 1) * sizes[1] * sizes[2] * sizes[3]
    (batch, channels, *image), outputs, kernel, stride, _, _ = sizes
    places = math.prod(image) / math.prod(stride)
    return 2.0 * batch * channels * outputs * math.prod(kernel) * places


def _elements(operator, sizes):
    if operator != _CONVOLUTION:
        batch, (rows, inner, columns) = max(sizes[0], 1), sizes[1:4]
        return batch * (rows * inner + inner * columns + rows * columns)
    (batch, channels, *image), outputs, kernel = sizes[:3]
    return batch * (channels + outputs) * math.prod(image) + channels * outputs * math.prod(kernel)


def _padded(operator, sizes, multiple):
    """Return sizes padded where that costs little, and those that were, by their dimension."""
    named = []

    def up(name, size):
        padded = multiple * -(-size // multiple)
        if padded == size or padded > size * (1 + _MOST_GROWTH):
            return size
        named.append({"dimension": name, "size": size, "padded": padded})
        return padded

    if operator == _CONVOLUTION:
        image, outputs = sizes[:2]
        image = (image[0], up("input channels", image[1]), *image[2:])
        return (image, up("output channels", outputs), *sizes[2:]), named
    batch, rows, inner, columns, turned = sizes
    names = zip(("rows", "inner", "columns"), (rows, inner, columns))  # noqa: B905
    return (batch, *(up(name, size) for name, size in names), turned), named


def _written(operator, sizes):
    if operator == _CONVOLUTION:
        image, outputs, kernel = sizes[:3]
        return "%s, %s" % (list(image), [outputs, image[1], *kernel])
    batch, rows, inner, columns, _ = sizes
    lead = [batch] if batch else []
    return "%s, %s" % ([*lead, rows, inner], [*lead, inner, columns])
