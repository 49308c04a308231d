"""What fixes and checks ask of a `Recording`: loaders, models, and shares of the step. Pure."""

import math
import re

from torchdoctor.schema import (
    DatasetWrite,
    Evidence,
    Operator,
    PythonCall,
    PythonPlace,
    Recording,
    Shares,
    StepStatistics,
    TraceStatistics,
    fact,
    figures,
)
from torchdoctor.schema.location import Location
from torchdoctor.schema.program import LoaderFacts, ModelFacts, OptimizerFacts

_WORTH_IN_16_BITS = 0.05  # of the step
MOSTLY_READY = 0.5  # of the waits for workers
_FEWEST_LOOKS = 10
_LONGER = 1.5  # the mean profiled step against the observed one, either way
_LONG = 0.2  # of a step: what holds the host for less explains little
# Phases in which the host launches work of the GPU.
_LAUNCHING = frozenset(("forward_s", "backward_s", "optimizer_s", "evaluation_s"))
_OTHER_WAIT = 0.10  # between the shares that wait for data
_SHORT_EPOCH_S = 5.0  # of which whole ones fit into a block
_CONVOLUTION = re.compile(r"conv(?!ert)(?!_tbc)", re.IGNORECASE)
_PRODUCT = re.compile(
    r"conv(?!ert)|mm(_|$)|::_?(mv|linear|matmul|einsum)|attention|lstm|gru|mkldnn_rnn",
    re.IGNORECASE,
)
# `_convolution` calls the library's operator; oneDNN's transposed one has no other operator.
_TRANSPOSED = re.compile(r"conv.*transpose|^aten::_convolution$", re.IGNORECASE)


def batches_on_device(loader: LoaderFacts) -> bool:
    """Return True if a loader hands out tensors that lie on an accelerator already."""
    return any(tensor.device != "cpu" for batch in loader.batch_tensors for tensor in batch)


def training_loaders(recording: Recording) -> list[LoaderFacts]:
    """Return the loaders that feed the training: the main one, then others of its place."""
    loaders = recording.main.loaders
    steps = recording.steps
    if steps is not None and steps.boundary.kind == "loader":
        main = next((loader for loader in loaders if loader.ident == steps.boundary.ident), None)
    else:
        used = [loader for loader in loaders if loader.batches > 0]
        main = max(used, key=lambda loader: loader.batches) if used else None
    if main is None:
        return []
    siblings = [
        loader_facts for loader_facts in _made_there(main, loaders) if loader_facts is not main
    ]
    # Those made before the same iterators were started stand side by side.
    iterators_before = main.iterators_before
    return [
        main,
        *(
            sibling
            for sibling in siblings
            if iterators_before is None or sibling.iterators_before != iterators_before
        ),
    ]


def training_loader_location(recording: Recording) -> Location | None:
    """Return where the main training loader is constructed; None: there is none, or not known."""
    loaders = training_loaders(recording)
    return loaders[0].location if loaders else None


def _made_there(main: LoaderFacts, loaders: list[LoaderFacts]) -> list[LoaderFacts]:
    """Return the loaders made at the place of this one, of as many samples, itself included."""
    place_and_length = (main.location, main.dataset_length)
    alike = [
        loader
        for loader in loaders
        if main.location and (loader.location, loader.dataset_length) == place_and_length
    ]
    return alike or [main]


def loader_target(recording: Recording) -> dict[str, int]:
    """Return the setting that names the loader; {}: all, also where one line makes several."""
    training = training_loaders(recording)
    loaders = recording.main.loaders
    if training and len(loaders) > len(_made_there(training[0], loaders)) == 1:
        return {"loader": training[0].ident}
    return {}


def allows_second_loader(recording: Recording) -> bool:
    """Return True if a loader beside its own can compare fixes: epochs must not be short."""
    training = training_loaders(recording)
    steps = recording.steps
    if steps is None or len(training) != 1 or training[0].no_second is not None:
        return False
    loader = training[0]
    batches = loader.batches / max(loader.iterators, 1) / max(steps.batches_per_step, 1.0)
    return loader.iterators < 2 or steps.mean_s * batches >= _SHORT_EPOCH_S


def training_models(recording: Recording) -> list[ModelFacts]:
    """Return the root modules that were called in training mode, or all that infer."""
    if recording.infers:
        return [m for m in recording.main.models if m.forwards]
    return [m for m in recording.main.models if m.forwards > m.eval_forwards]


def in_training_mode(recording: Recording) -> list[ModelFacts]:
    """Return models that infer in training mode, and compute something else in it."""
    if not recording.infers:
        return []
    models = training_models(recording)
    return [m for m in models if m.mode_dependent and m.forwards > m.eval_forwards]


def data_wait_share(recording: Recording) -> float | None:
    """Return the share of the step that training waits for the loader; None: not measured."""
    steps = recording.steps
    return share_of_seconds(recording, training_wait_s(steps) if steps is not None else 0.0)


def training_wait_s(steps: StepStatistics) -> float:
    """Return seconds of a step that training waits for data; evaluation's wait is its own part."""
    return max(steps.data_wait_s - steps.evaluation_wait_s, 0.0)


def phase_share(recording: Recording, *phases: str) -> float | None:
    """Return the share of the mean step that fields of StepStatistics take; None: not measured.

    By the host's clock beside a busy GPU a phase is given the time that the host waits in it for
    room in the GPU's queue: then it costs at most what the GPU idles. Where that is not known, a
    phase that launches work may be all waiting.
    """
    steps = recording.steps
    seconds = sum(getattr(steps, phase) for phase in phases) if steps is not None else 0.0
    share = share_of_seconds(recording, seconds)
    if share is None or steps is None or steps.device_clock or not recording.has_gpu:
        return share
    busy = device_busy(recording)
    if busy is None:
        return None if _LAUNCHING.intersection(phases) else share
    return min(share, max(1.0 - busy, 0.0))


def device_busy(recording: Recording) -> float | None:
    """Return the share of the step in which a GPU surely computes; None: not known."""
    steps = recording.steps
    if recording.shares.gpu is not None or steps is None or steps.device_busy_s is None:
        return recording.shares.gpu
    return share_of_seconds(recording, steps.device_busy_s)


def device_unseen(recording: Recording) -> bool:
    """Return True if a trace shows only the host of a program that trains on a GPU."""
    trace = recording.trace
    return recording.has_gpu and trace is not None and not trace.has_device


def reading_wait_s(trace: TraceStatistics | None, *more: str) -> float:
    """Return the seconds of a step in operators that read a value: all but some us is waiting."""
    operators = trace.operators if trace is not None else []
    return sum(
        operator.self_s
        for operator in operators
        if operator.name in ("aten::_local_scalar_dense", *more)
    )


def share_of_seconds(recording: Recording, seconds: float) -> float | None:
    """Return the share of the mean step that its `seconds` take, at most 1; None: not measured."""
    steps = recording.steps
    return min(seconds / steps.mean_s, 1.0) if steps is not None and steps.mean_s > 0 else None


def long_steps_share(steps: StepStatistics) -> float:
    """Return the share of the mean step that single long steps cost for no reason known."""
    explained_s = steps.evaluation_s + steps.loader_start_s + steps.first_batch_s
    explained_s += steps.between_epochs_s
    extra_s = steps.mean_s - explained_s - steps.median_s
    return extra_s / steps.mean_s if steps.mean_s > 0 else 0.0


def respawn_share(recording: Recording) -> float | None:
    """Return the share of the step that starting workers again takes; None where they are not."""
    loaders = training_loaders(recording)
    if sum(loader.iterators for loader in loaders) < 2 or loaders[0].persistent_workers:
        return None
    if not loaders[0].num_workers:
        return None
    return phase_share(recording, "loader_start_s", "first_batch_s")


def order_wait_share(recording: Recording) -> float | None:
    """Return the share of the step spent waiting while a later batch lay ready; None: unknown."""
    steps = recording.steps
    loaders = training_loaders(recording)
    wait = data_wait_share(recording)
    batches = sum(loader.batches for loader in loaders)
    if steps is None or wait is None or not batches:
        return None
    each_s = sum(loader.overtaken_s for loader in loaders) / batches
    return min(each_s * max(steps.batches_per_step, 1.0) / steps.mean_s, wait)


def unlike_profiled(steps: StepStatistics | None, trace: TraceStatistics | None) -> bool:
    """Return True if profiled steps on a CPU took another time, or waited for data otherwise."""
    if steps is None or trace is None or trace.has_device or not trace.step_s or steps.mean_s <= 0:
        return False
    apart = trace.step_s / steps.mean_s
    traced = trace.shares.data_loader
    waits_apart = 0.0 if traced is None else abs(traced - steps.data_wait_s / steps.mean_s)
    return not 1 / _LONGER <= apart <= _LONGER or waits_apart > _OTHER_WAIT


def multiplies_float32(trace: TraceStatistics) -> bool:
    """Return True if plain float32 products of the GPU take a part of the step worth a change."""
    return (trace.float32_matrix_s or 0.0) >= _WORTH_IN_16_BITS * (trace.step_s or math.inf)


def convolves(trace: TraceStatistics) -> bool:
    """Return True if convolutions are among the operators that take most."""
    return any(_CONVOLUTION.search(operator.name) for operator in trace.operators)


def place(recording: Recording, location: Location | None, otherwise: str = "") -> str:
    """Return "train.py:42", relative to the program's folder where it lies below that."""
    return figures.place(location, recording.workload.cwd) or otherwise


def own_changes(recording: Recording) -> list[DatasetWrite]:
    """Return what the dataset changes in itself where it prepares a sample, but for a cache."""
    loaders = training_loaders(recording)
    return [write for loader in loaders[:1] for write in loader.dataset_writes if not write.cache]


def loader_cpu_share(recording: Recording) -> float | None:
    """Return the share of fetching that is CPU time, of workers of what they could use."""
    loaders = training_loaders(recording)
    sensors = recording.sensors
    if not loaders or not loaders[0].num_workers:
        return loaders[0].sample_cpu_share if loaders else None
    if sensors.workers_cpus is None:
        return None
    could = min(loaders[0].num_workers, max(recording.environment.cpus, 1.0))
    return min((sensors.workers_cpus + (sensors.workers_queued_cpus or 0.0)) / could, 1.0)


def taken_over_s(recording: Recording) -> float | None:
    """Return the seconds of a step in which ready batches of workers are taken over, or None."""
    loaders = training_loaders(recording)
    steps = recording.steps
    if not loaders or loaders[0].num_workers == 0 or steps is None:
        return None
    looks = sum(loader.looks for loader in loaders)
    taken_s = sum(loader.taken_over_s for loader in loaders)
    return taken_s / looks * (steps.batches_per_step or 1.0) if looks else None


def workers_keep_up(recording: Recording) -> bool:
    """Return True if a batch lay ready for most of the time of looking into the workers' queue."""
    loaders = training_loaders(recording)
    if not loaders or sum(loader.looks for loader in loaders) < _FEWEST_LOOKS:
        return False
    ready_s = sum(loader.taken_over_s for loader in loaders)
    awaited_s = sum(loader.awaited_s for loader in loaders)
    return ready_s > 0 and ready_s >= MOSTLY_READY * (ready_s + awaited_s)


def compute_share(recording: Recording) -> float | None:
    """Return the share of the step in kernels, or on a CPU in large operators; None: unknown."""
    if recording.shares.gpu is not None or device_unseen(recording):
        return recording.shares.gpu
    trace = recording.trace
    if trace is None or trace.compute_s is None or not trace.step_s:
        return None
    return min(trace.compute_s / trace.step_s, _in_training(recording, "optimizer_s"))


def _in_training(recording: Recording, *without: str) -> float:
    """Return the share of the step in which the host trains, without evaluation and phases.

    The few profiled steps may hold neither evaluation nor the real wait for data.
    """
    beside = phase_share(recording, "evaluation_s", *without) or 0.0
    return max((recording.shares.cpu or 1.0) - beside, 0.0)


def product_share(recording: Recording) -> float | None:
    """Return what 16 bits may make faster: `arithmetic_share`, of a CPU matrix products alone."""
    trace = recording.trace
    on_gpu = recording.shares.gpu is not None or recording.has_gpu
    if on_gpu or trace is None or not trace.step_s:
        return arithmetic_share(recording)
    products_s = sum(
        operator.self_s for operator in trace.operators if _PRODUCT.search(operator.name)
    )
    return min(products_s / trace.step_s, _in_training(recording, "optimizer_s"))


def arithmetic_share(recording: Recording) -> float | None:
    """Return `compute_share` without looking rows up or scattering them, which moves memory."""
    share = compute_share(recording)
    trace = recording.trace
    if share is None or trace is None or not trace.gather_s or not trace.step_s:
        return share
    return max(share - trace.gather_s / trace.step_s, 0.0)


def overhead_share(recording: Recording) -> float | None:
    """Return the share of the step in Python, dispatch and small operators; None: not measured."""
    trace = recording.trace
    if trace is None or None in (trace.python_s, trace.small_operator_s) or not trace.step_s:
        return None
    share = (trace.linking_s + (trace.small_operator_s or 0.0)) / trace.step_s
    if device_unseen(recording):  # within the operators the host may wait for room in the queue
        busy = device_busy(recording)
        return None if busy is None else min(share, max(1.0 - busy, 0.0))
    if recording.shares.cpu is None:
        return share
    # Python that stacks name is none that links operators.
    other_s = (recording.shares.other or 0.0) * trace.step_s - working_python_s(trace)
    linking_s = min(max(other_s, 0.0), trace.linking_s) if trace.has_device else 0.0
    if not trace.has_device:
        return min(share, _in_training(recording))
    return min(share, recording.shares.cpu + linking_s / trace.step_s)


def exposed_python(trace: TraceStatistics | None, shares: Shares) -> float:
    """Return the part of `Shares.other`, with a GPU, that is Python between operators."""
    other = shares.other
    if trace is None or not trace.has_device or not trace.step_s or other is None:
        return 0.0
    return min(other, max(trace.linking_s, working_python_s(trace)) / trace.step_s)


def working_python_s(trace: TraceStatistics) -> float:
    """Return the seconds of a step in which Python works while no device does, by its stacks."""
    return sum(max(place.other_s - place.waiting_s, 0.0) for place in trace.python_places)


def on_host(trace: TraceStatistics) -> list[Evidence]:
    """Return operators and the line of Python that hold the host for long."""
    least_s = _LONG * (trace.step_s or 0.0)
    slow_operators = (
        operator
        for operator in trace.operators
        if not operator.device_s and operator.self_s - operator.calling_s > least_s
    )
    places = (
        python_place for python_place in trace.python_places[:1] if python_place.total_s > least_s
    )
    operators = [
        fact("operator-on-host", name=operator.name, seconds=operator.self_s)
        for operator in slow_operators
    ]
    lines = [
        fact("python-on-host", location=at(place), function=place.function) for place in places
    ]
    return [*operators, *lines]


def at(place: PythonPlace | PythonCall) -> Location:
    """Return where a place of a trace's stacks is."""
    return Location(file=place.file, line=place.line, function=place.function)


def updates_one_by_one(optimizer: OptimizerFacts) -> bool:
    """Return True if the optimizer loops through its tensors in Python, as by default on a CPU."""
    by_default = optimizer.device == "cpu" and optimizer.foreach is None
    return not optimizer.fused and (optimizer.foreach is False or by_default)


def spent_s(operator: Operator) -> float:
    """Return an operator's own seconds of a step: the device's, or without one the host's."""
    return operator.self_s if operator.device_s is None else operator.device_s


def convolution_share(recording: Recording) -> float | None:
    """Return the share of the step in convolutions, transposed ones left out, if traced."""
    trace = recording.trace
    if trace is None or not trace.step_s or not trace.operators:
        return None
    every = [operator for operator in trace.operators if _CONVOLUTION.search(operator.name)]
    plain = [operator for operator in every if not _TRANSPOSED.search(operator.name)]
    if all(
        "backward" in operator.name.lower() for operator in plain
    ):  # which both kinds have in common
        return 0.0
    return sum(map(spent_s, plain)) / trace.step_s
