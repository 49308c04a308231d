"""What of a recording fixes touch, in seconds of a step, and what is left in its place. Pure.

None: the recording cannot say. Empty: it can, and there is nothing of the kind.
"""

import re
from dataclasses import replace

from torchdoctor.queries.epoch_start import start_s
from torchdoctor.queries.gpu_data_sheets import DataSheet, data_sheet
from torchdoctor.queries.loading import least_step_s
from torchdoctor.queries.lookup import (
    loader_cpu_share,
    product_share,
    spent_s,
    training_loaders,
    unlike_profiled,
)
from torchdoctor.schema import Recording, Touched, Touches, TracedPart, TraceStatistics

WAITS = ("data_wait_s", "loader_start_s")
_SAYS = {"data_wait_s": "waiting for data", "before_forward_s": "preparing batches"}
_LINK_REACHES = 0.85  # of a link's rate: packets have headers
_FASTEST_LINK = 64e9  # bytes/s: PCIe 5.0 with 16 lanes, where the sheet says none
_PAGEABLE_AT_MOST = 0.2  # of the link's rate: 4 to 6 GB/s of 13 to 27 measured
_PASSES = 3  # over the parameters: gradients and parameters read, parameters written
_LEAST_OF_SLEEP = 3.0  # times: cores that slept through a wait compute so much slower after it
_LEAST_OF_CACHES = 3.0  # times: 1.8 to 2.0 measured after reads of three quarters of a step
_GIVEN_BACK = 0.4  # of a copy: 0.24 to 0.27 measured of 100 MB, of which samples see less than all
_MODEL = "dispatch and operators by element"
_ZEROS = "gradients set to zero"
_FUSED_INTO_PRODUCTS = 0.2  # of their time
_ATTENTION = re.compile(r"^aten::(?:_softmax|bmm|baddbmm)$|(?<!log)_softmax_back")
_SIXTEEN_BITS = 0.5  # of the bytes of float32
_CPU_BF16 = {"amx_bf16": 16.0, "avx512_bf16": 2.0, "bf16": 4.0}  # products a cycle, over float32


def traced(recording: Recording) -> TraceStatistics | None:
    """Return the trace, if a share of its steps says something about usual steps."""
    trace = recording.trace
    if trace is None or not trace.step_s or trace.unusual or trace.device_missing:
        return None
    return trace


def sheet_of(recording: Recording) -> DataSheet | None:
    """Return the data sheet that all GPUs of the recording have; None: it is not known."""
    sheets = [data_sheet(gpu.name) for gpu in recording.environment.gpus]
    return sheets[0] if sheets and all(sheet == sheets[0] for sheet in sheets) else None


def part(
    recording: Recording, name: str, label: str, branch: str = "", remains_s: float = 0.0
) -> Touches:
    """Return a part of the trace by its name in `TraceStatistics.parts`."""
    trace = traced(recording)
    if trace is None or not trace.parts or not trace.step_s:
        return None
    traced_part = trace.parts.get(name)
    if traced_part is None:
        return []
    return [
        Touched(
            label=label,
            seconds=traced_part.seconds,
            of_s=trace.step_s,
            remains_s=remains_s,
            beside_s=traced_part.beside_s,
            branch=branch,
        )
    ]


def host_and_device(recording: Recording, name: str, label: str, remains_s: float) -> Touches:
    """Return a part that is on the host and on the device; `remains_s` is left on the device."""
    trace = traced(recording)
    if trace is None or not trace.parts or not trace.step_s:
        return None
    traced_part = trace.parts.get(name)
    if traced_part is None:
        return []
    if not trace.has_device:
        return part(recording, name, label, "cpu", remains_s)
    saved_s = max(traced_part.device_s - remains_s, 0.0)
    of_device = Touched(
        label=label,
        seconds=traced_part.device_s,
        of_s=trace.step_s,
        remains_s=remains_s,
        branch="gpu",
    )
    most_s = min(
        traced_part.seconds - traced_part.device_s, trace.step_s - traced_part.beside_s - saved_s
    )
    of_host = Touched(label=label, seconds=max(most_s, 0.0), of_s=trace.step_s, branch="cpu")
    return [of_host, of_device]


def several(*touched: Touches) -> Touches:
    """Return the parts of several descriptions; None: one of them cannot be told.

    What the device does beside one of them may be another one, so it takes nothing away.
    """
    parts: list[Touched] = []
    for each in touched:
        if each is None:
            return None
        parts += each
    return parts if len(parts) < 2 else [replace(part, beside_s=0.0) for part in parts]


def phases(recording: Recording, *names: str, label: str = "", least_s: float = 0.0) -> Touches:
    """Return phases of the observed step, as the host's clock has them."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return None
    seconds = min(sum(getattr(steps, name) for name in names), steps.mean_s)
    if seconds <= 0:
        return []
    says = label or _SAYS.get(names[0], names[0].removesuffix("_s").replace("_", " "))
    return [Touched(label=says, seconds=seconds, of_s=steps.mean_s, remains_s=least_s)]


def waits(recording: Recording, *names: str, elsewhere: bool = False) -> Touches:
    """Return the waits for data, in these phases or `WAITS`, or what a trace shows of them.

    `elsewhere`: samples are prepared in other processes, for which the CPUs must have time. After
    a wait that is most of the step the rest gets faster as well, where the CPU computes it. What
    the beginning of each epoch takes is no wait for samples, and stays.
    """
    steps = recording.steps
    if steps is None:
        return part(recording, "loader", "waiting for data", "data_loader")
    waited = phases(recording, *(names or WAITS))
    if waited and (starts_s := start_s(recording)):
        left_s = waited[0].seconds - starts_s
        waited = [replace(waited[0], seconds=left_s)] if left_s > 0 else []
    if not waited or recording.has_gpu:
        return waited
    (wait,) = waited
    busy = loader_cpu_share(recording) or 0.0
    share = (1.0 - busy) * wait.seconds / steps.mean_s
    rest_s = steps.mean_s - wait.seconds
    rest = Touched(
        label="operators on cores that slept",
        seconds=rest_s,
        of_s=steps.mean_s,
        remains_s=rest_s / _LEAST_OF_SLEEP ** (share**2),
    )
    least_s = least_step_s(recording) if elsewhere else None
    if least_s is None:
        return [wait, rest]
    remains_s = max(least_s - rest_s, 0.0)
    return [
        Touched(label=wait.label, seconds=wait.seconds, of_s=wait.of_s, remains_s=remains_s),
        rest,
    ]


def moving_memory(recording: Recording, lines: Touches, *, copies: bool = False) -> Touches:
    """Return lines that move much memory, and what of the rest of a CPU's step goes with them.

    The rest finds its caches full of what they moved. The memory of `copies` is given back where
    their name ends, mostly as the function returns: no sample of their lines shows that.
    """
    if not lines or recording.has_gpu:
        return lines
    (moved,) = lines
    share = moved.seconds / moved.of_s
    rest_s = moved.of_s - moved.seconds
    released_s = min(_GIVEN_BACK * moved.seconds, rest_s) if copies else 0.0
    rest_s -= released_s
    released = replace(moved, label="giving copies back", seconds=released_s)
    rest = replace(
        moved,
        label="operators on emptied caches",
        seconds=rest_s,
        remains_s=rest_s / _LEAST_OF_CACHES ** (share**2),
    )
    return [each for each in (moved, released, rest) if each.seconds > 0]


def given_back(recording: Recording) -> Touches:
    """Return the time of a step that workers of the loader take from the training's operators."""
    loaders = training_loaders(recording)
    steps = recording.steps
    busy = recording.sensors.workers_cpus
    if steps is None or busy is None or not loaders or not loaders[0].num_workers:
        return []
    rest_s = max(steps.mean_s - steps.data_wait_s - steps.loader_start_s, 0.0)
    taken_s = min(busy * steps.mean_s, rest_s)
    label = "operators beside busy workers"
    return [Touched(label=label, seconds=taken_s, of_s=steps.mean_s)] if taken_s else []


def pinned_copies(recording: Recording) -> Touches:
    """Return copies from pageable memory, which become pinned ones at the link's rate.

    Of a program with a loader its batches alone are pinned; else results are copied back as well.
    """
    trace = traced(recording)
    if trace is None or not trace.parts:
        return None
    names = ["pageable copies to the device"]
    if not recording.shares.data_loader and not training_loaders(recording):
        names.append("pageable copies to the host")
    touched: list[Touched] = []
    for name in names:
        traced_part = trace.parts.get(name)
        if traced_part is not None:
            remains_s = _at_link_rate_s(recording, traced_part)
            touched += part(recording, name, "copies of pageable memory", "memcpy", remains_s) or []
    return touched


def _at_link_rate_s(recording: Recording, copies: TracedPart) -> float:
    """Return what copies of so many bytes take at the link's rate, at least."""
    if copies.bytes is None:
        return copies.device_s * _PAGEABLE_AT_MOST
    sheet = sheet_of(recording)
    link = sheet.pcie_gb_per_s / 2 * 1e9 if sheet and sheet.pcie_gb_per_s else _FASTEST_LINK
    return min(copies.bytes / (link * _LINK_REACHES), copies.device_s)


def precision_ratio(recording: Recording, precision: str, now: str = "float32") -> float:
    """Return the part of a product's time that is left in a lower precision; 0: not known."""
    sheet = sheet_of(recording)
    before, after = (sheet.peak(dtype) if sheet else None for dtype in (now, precision))
    return min(before / after, 1.0) if before and after else 0.0


def cpu_precision_ratio(recording: Recording) -> float | None:
    """Return the same of bfloat16 on this CPU; None: it is not known to have such units."""
    features = recording.environment.cpu_features
    rates = [rate for name, rate in _CPU_BF16.items() if name in features]
    return 1.0 / max(rates) if rates else None


def products(recording: Recording, name: str, label: str, ratio: float) -> Touches:
    """Return matrix products of which this part is left in another precision."""
    trace = traced(recording)
    traced_part = trace.parts.get(name) if trace is not None else None
    left_s = ratio * traced_part.seconds if traced_part is not None else 0.0
    return part(recording, name, label, "gpu" if recording.has_gpu else "cpu", left_s)


def moved_in_half(recording: Recording) -> Touches:
    """Return operators by element, which move half of the bytes in 16 bits."""
    return products(recording, "elementwise", "operators by element", _SIXTEEN_BITS)


def at_peak_s(recording: Recording, wanted: str) -> float:
    """Return what listed products of such a name take at the peak of their precision, of a step."""
    trace = traced(recording)
    sheet = sheet_of(recording)
    if trace is None or trace.matrix_work is None or sheet is None:
        return 0.0
    listed = (product for product in trace.matrix_work.products if wanted in product.operator)
    peaks = ((product.flops, sheet.peak(product.precision or "")) for product in listed)
    return sum(flops / peak for flops, peak in peaks if peak)


def convolutions(recording: Recording, flat_too: bool) -> Touches:
    """Return convolutions of images; `flat_too`: also those along one side."""
    branch = "gpu" if recording.has_gpu else "cpu"
    image_convolutions = part(
        recording, "convolutions", "convolutions", branch, at_peak_s(recording, "conv")
    )
    if not flat_too:
        return image_convolutions
    return several(image_convolutions, part(recording, "flat convolutions", "convolutions", branch))


def optimizer_update(recording: Recording) -> Touches:
    """Return the update of the parameters, which are read and written once in any case."""
    trace = traced(recording)
    sheet = sheet_of(recording)
    exchanged = trace.exchange.gradient_bytes if trace and trace.exchange else None
    moved_s = _PASSES * exchanged / sheet.bandwidth if exchanged and sheet else 0.0
    return host_and_device(recording, "optimizer", "the optimizer's update", moved_s)


def model(recording: Recording) -> Touches:
    """Return what a compiler works on: operators by element, and handing all operators out.

    On a CPU some of the products' time as well, for what it puts into the loops around them.
    """
    trace = traced(recording)
    steps = recording.steps
    traced_part = trace.parts.get("model") if trace is not None else None
    if recording.has_gpu or steps is None:
        return host_and_device(
            recording, "model", _MODEL, traced_part.remains_s if traced_part else 0.0
        )
    forward = phases(recording, "forward_s", "backward_s", label=_MODEL)
    if not forward or traced_part is None or trace is None or not trace.step_s:
        return forward
    if unlike_profiled(steps, trace):
        return forward
    share = traced_part.seconds / trace.step_s
    share += _FUSED_INTO_PRODUCTS * (product_share(recording) or 0.0)
    return calls(recording, min(share * steps.mean_s, forward[0].seconds), _MODEL)


def products_on_cpu(recording: Recording, ratio: float) -> Touches:
    """Return a CPU's matrix products of which this part is left in fewer bits."""
    steps = recording.steps
    if steps is None:
        return products(recording, "products", "matrix products", ratio)
    forward = phases(recording, "forward_s", "backward_s", label="matrix products")
    share = product_share(recording)
    trace = recording.trace
    if not forward or share is None:
        return forward
    # The profiler makes small operators longer, and products hardly.
    step_s = trace.step_s if trace is not None and trace.step_s else steps.mean_s
    seconds = min(share * step_s, forward[0].seconds)
    if seconds <= 0:
        return []
    return [replace(forward[0], seconds=seconds, remains_s=ratio * seconds)]


def attention(recording: Recording) -> Touches:
    """Return attention that is computed operator by operator; its products remain."""
    trace = traced(recording)
    if trace is None or not trace.step_s:
        return None
    operators = [operator for operator in trace.operators if _ATTENTION.search(operator.name)]
    seconds = min(sum(map(spent_s, operators)), trace.step_s)
    touched = Touched(
        label="scores, softmax and weighted sums",
        seconds=seconds,
        of_s=trace.step_s,
        remains_s=min(at_peak_s(recording, "bmm"), seconds),
        branch="gpu" if trace.has_device else "cpu",
    )
    return [touched] if seconds else []


def synchronization(recording: Recording) -> Touches:
    """Return what the device idles for values that the host reads, and for memory given back."""
    trace = traced(recording)
    steps = recording.steps
    if trace is None or not trace.step_s:
        return None
    if not trace.has_device:
        return []
    read_s = max(trace.blocking_copy_exposed_s or 0.0, trace.after_sync_s or 0.0)
    emptied_s = (trace.allocation_s or 0.0) * bool(trace.releases_per_step)
    seconds = min(read_s + emptied_s, trace.step_s)
    called_s = sum(
        tensor_call.host_s
        for tensor_call in recording.main.tensor_calls
        if tensor_call.kind == "wait"
    )
    if steps is not None and called_s > seconds:  # the analysed steps saw more
        return calls(recording, called_s, "waits for the device")
    touched = Touched(label="waits for the device", seconds=seconds, of_s=trace.step_s)
    return [touched] if seconds else []


def zeroing(recording: Recording) -> Touches:
    """Return gradients that are written to zero, and added to after that."""
    trace = traced(recording)
    steps = recording.steps
    if steps is None or recording.has_gpu:
        return host_and_device(recording, "zeroing", _ZEROS, 0.0)
    if trace is None or not trace.parts or not trace.step_s or unlike_profiled(steps, trace):
        return phases(recording, "backward_s", "optimizer_s", "other_s", label=_ZEROS)
    traced_part = trace.parts.get("zeroing")
    share = traced_part.seconds / trace.step_s if traced_part is not None else 0.0
    return calls(recording, share * steps.mean_s, _ZEROS) if share else []


def uneven_products(recording: Recording) -> Touches:
    """Return products of sizes that miss the fast path, and what they take at the peak."""
    trace = traced(recording)
    sheet = sheet_of(recording)
    if trace is None or trace.matrix_work is None or not trace.step_s:
        return None
    odd_products = [product for product in trace.matrix_work.products if product.uneven]
    peaks = (
        [(product.flops, sheet.peak(product.precision or "")) for product in odd_products]
        if sheet
        else []
    )
    touched = Touched(
        label="products of odd sizes",
        seconds=min(sum(product.device_s for product in odd_products), trace.step_s),
        of_s=trace.step_s,
        remains_s=sum(flops / peak for flops, peak in peaks if peak),
        branch="gpu",
    )
    return [touched] if odd_products else None


def calls(recording: Recording, seconds: float, label: str) -> Touches:
    """Return calls of the training loop that hold the host for so long in a step."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return None
    return [Touched(label=label, seconds=min(seconds, steps.mean_s), of_s=steps.mean_s)]


def operators_on_cpu(recording: Recording, left: float = 0.0) -> Touches:
    """Return what operators compute on the CPU, of which this part is left.

    No sleep, wait or Python of the program's own; beside a GPU it is what the GPU waits for.
    """
    trace = traced(recording)
    steps = recording.steps
    label = "operators on the CPU"
    if recording.has_gpu and (trace is None or trace.has_device):
        share = recording.shares.cpu
        whole_s = trace.step_s if trace is not None else None
        if share is None or not whole_s:
            return None
        seconds = share * whole_s
        of_s = whole_s
    elif trace is not None and trace.step_s and not unlike_profiled(steps, trace):
        if trace.compute_s is None:
            return None
        of_s = trace.step_s
        seconds = min(trace.compute_s + (trace.small_operator_s or 0.0), of_s)
    else:
        touched = phases(
            recording, "forward_s", "backward_s", "optimizer_s", "other_s", label=label
        )
        return touched and [replace(phase, remains_s=left * phase.seconds) for phase in touched]
    if seconds <= 0:
        return []
    return [Touched(label=label, seconds=seconds, of_s=of_s, remains_s=left * seconds)]


def busy_workers_wait(recording: Recording) -> Touches:
    """Return the waits for workers as far as these compute: they do it sooner on free cores."""
    loaders = training_loaders(recording)
    steps = recording.steps
    if steps is None or not loaders or not loaders[0].num_workers:
        return []
    busy = loader_cpu_share(recording)
    seconds = (1.0 if busy is None else busy) * steps.data_wait_s
    return calls(recording, seconds, "waiting for busy workers") if seconds > 0 else []


def launches(recording: Recording) -> Touches:
    """Return the host's work of handing kernels out one by one; the kernels all remain."""
    return part(recording, "launches", "launches from the host", "cpu")


def convolution_biases(recording: Recording) -> Touches:
    """Return what adds biases to convolutions, and sums up their gradients.

    None on a CPU, where a convolution does it itself.
    """
    trace = traced(recording)
    if trace is None or not trace.has_device:
        return None
    return part(recording, "biases of convolutions", "biases of convolutions", "gpu")


def collectives(recording: Recording) -> Touches:
    """Return the collectives that nothing hides, those that the host computes included."""
    trace = traced(recording)
    if trace is None or not trace.step_s or trace.communication_s is None:
        return None
    exposed_s = (trace.communication_exposed_s or 0.0) + (trace.host_collective_s or 0.0)
    seconds = min(exposed_s, trace.step_s)
    touched = Touched(
        label="collectives", seconds=seconds, of_s=trace.step_s, branch="communication"
    )
    return [touched] if seconds else []


def dense_gradients(recording: Recording) -> Touches:
    """Return where gradients of whole tables are made, cleared and applied."""
    label = "gradients of whole tables"
    if not recording.has_gpu:
        return phases(recording, "backward_s", "optimizer_s", "other_s", label=label)
    trace = traced(recording)
    if trace is None or not trace.step_s:
        return None
    made_s = sum(
        spent_s(operator) for operator in trace.operators if "embedding_dense_back" in operator.name
    )
    made = [Touched(label=label, seconds=min(made_s, trace.step_s), of_s=trace.step_s)]
    applied = host_and_device(recording, "optimizer", label, 0.0)
    return several(made if made_s else [], applied, zeroing(recording))


def random_numbers(recording: Recording) -> Touches:
    """Return the drawing of random numbers on the host of a device, and copies to the device."""
    trace = traced(recording)
    if trace is None or not trace.has_device:
        return None
    drawn = part(recording, "random numbers", "random numbers drawn on the host", "cpu")
    if not drawn:
        return drawn
    copied = part(recording, "copies to the device", "copies to the device", "memcpy")
    return several(drawn, copied)
