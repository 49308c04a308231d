"""What the literature asks a tool like this for, row by row, and what here answers it.

The rows are the union of public guides to PyTorch performance and of the checks that other
profilers have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing asked for. checks, fixes: ids; tests: beside those of the files' own examples."""

    asked: str
    checks: Sequence[str] = ()
    fixes: Sequence[str] = ()
    tests: Sequence[str] = ()
    lacking: str = ""  # what of it is not there, one sentence


_COMMANDS = "tests/fixes/test_offered_commands.py"
_SCALING = "tests/recording/test_scaling.py"
_PROBED = "tests/probe/test_analysis.py"
_COMPILED = "tests/fixes/test_compiling.py"
_INFERRING = "tests/probe/test_inference.py"
_COMPILING = "tests/probe/test_compile_facts.py"
_FLOAT16 = "tests/fixes/test_float16.py"
_PADDED = "tests/probe/test_padded_products.py"
_WINDOWS = "tests/test_trace_windows.py"
_PADDED_TEST = f"{_PADDED}::test_uneven_products_of_the_program_are_timed_alone_beside_padded_ones"
_SNAPSHOT_TEST = f"{_PADDED}::test_the_snapshot_is_written_once_and_recording_ends"
_ROWS_OF_CHECKS = (
    Row(
        asked="waiting for input, also without a DataLoader",
        checks=("data-wait", "inline-batch-preparation"),
        fixes=("loader-workers", "prefetch-factor", "persistent-workers"),
    ),
    Row(
        asked="loader: CPU- or I/O-bound, handing over, cold cache, slow sample, workers, swap",
        checks=(
            "loader-cpu-bound",
            "loader-io-bound",
            "batch-transfer",
            "cold-page-cache",
            "slow-sample",
            "worker-imbalance",
            "workers-respawned",
            "swap",
        ),
        fixes=("loader-workers", "persistent-workers", "prefetch-factor", "in-order-off"),
        tests=(
            "tests/probe/test_loader_order.py::test_a_slow_worker_that_others_wait_for_is_seen",
            "tests/probe/test_loader_order.py::"
            "test_batches_that_lie_ready_are_told_from_slow_workers",
            "tests/storage/test_cold_page_cache.py::"
            "test_cold_files_are_told_from_warm_ones_before_they_are_read",
        ),
    ),
    Row(
        asked="worker count against usable CPUs",
        checks=("worker-count",),
        fixes=("loader-workers",),
    ),
    Row(
        asked="copies between host and device; pageable or synchronous ones; memset",
        checks=("memcpy-share", "pageable-copies", "copy-without-pinning", "memset-share"),
        fixes=("pin-memory", "device-prefetch"),
        tests=(
            "tests/recording/test_trace_torch.py::"
            "test_memory_that_is_filled_in_every_step_is_found_with_its_operator",
        ),
    ),
    Row(
        asked="tensors made on the CPU and moved; torch.tensor of arrays; constants moved again",
        checks=("host-made-tensors", "copied-arrays"),
        fixes=("tensor-on-device", "as-tensor"),
        tests=(f"{_PROBED}::test_copies_and_moves_are_seen_at_their_lines",),
    ),
    Row(
        asked="synchronisation in the step, with file and line",
        checks=("sync-in-step",),
        fixes=("remove-sync",),
        tests=(f"{_PROBED}::test_what_waits_for_a_device_is_seen_at_its_line",),
    ),
    Row(
        asked="GPU busy share, gaps, fluctuation",
        checks=("gpu-utilization",),
        fixes=("torch-compile",),
    ),
    Row(
        asked="many small kernels; Python overhead",
        checks=("many-small-kernels", "python-overhead", "outside-operators"),
        fixes=("torch-compile", "fused-optimizer"),
    ),
    Row(
        asked="tensor cores or low precision unused; TF32 off",
        checks=("low-precision-unused", "tensor-cores-unused", "tf32-off"),
        fixes=("mixed-precision", "tf32", "cpu-bfloat16-products"),
    ),
    Row(
        asked="training in float64 by mistake",
        checks=("double-precision",),
        fixes=("single-precision",),
        tests=(
            "tests/probe/test_double_calls.py::"
            "test_the_lines_that_ask_for_float64_are_seen_and_nothing_stays_wrapped",
        ),
    ),
    Row(
        asked="sizes that are no multiples of 8",
        checks=("odd-sizes", "sizes-not-multiples"),
        fixes=("pad-to-multiple",),
        tests=(_PADDED_TEST,),
    ),
    Row(
        asked="unfused attention, unfused pointwise chains, index loops",
        checks=("unfused-attention", "unfused-pointwise", "index-loops"),
        fixes=("attention", "torch-compile", "vectorize"),
        tests=(f"{_PROBED}::test_loops_over_elements_are_seen_at_their_lines",),
    ),
    Row(
        asked="single-tensor optimizer; the optimizer's share",
        checks=("single-tensor-optimizer", "optimizer-share"),
        fixes=("fused-optimizer",),
    ),
    Row(
        asked="convolutions: NCHW, cudnn.benchmark off, bias before batch normalization",
        checks=("convolutions-nchw", "cudnn-benchmark-off", "conv-bias-before-norm"),
        fixes=("channels-last", "cudnn-benchmark", "conv-bias-off"),
    ),
    Row(
        asked="inference: batch normalization folded into the convolution before it",
        fixes=("fold-batch-norm",),
    ),
    Row(
        asked="inference: one input a call while others wait",
        checks=("batch-of-one",),
        fixes=("batched-inference",),
    ),
    Row(
        asked="zero_grad to zero; debug APIs left on",
        checks=("zero-grad-to-zero", "debug-left-on"),
        fixes=("set-to-none", "debug-off"),
    ),
    Row(
        asked="gradients kept in validation; graphs kept every step, with file and line",
        checks=("evaluation-with-gradients", "evaluation-share", "kept-graphs", "memory-growth"),
        fixes=("no-grad-evaluation", "release-graph"),
        tests=(f"{_PROBED}::test_graphs_that_are_kept_are_seen_with_what_keeps_them",),
    ),
    Row(
        asked="memory near the limit; batch too small; allocator retries, fragmentation",
        checks=("memory-near-limit", "batch-too-small", "allocator-thrash"),
        fixes=("larger-batch", "allocator", "gradient-accumulation", "activation-checkpointing"),
        tests=(_SNAPSHOT_TEST,),
        lacking="The memory snapshot was not yet taken on a GPU: its test uses a stand-in.",
    ),
    Row(asked="compute-bound or memory-bound: roofline and MFU", checks=("compute", "roofline")),
    Row(
        asked="communication share and overlap, stragglers, DataParallel, non-NCCL",
        checks=("communication-share", "rank-imbalance", "data-parallel", "backend-not-nccl"),
        fixes=("ddp", "nccl-backend"),
        tests=(
            "tests/probe/test_process_group.py::"
            "test_the_backend_and_the_line_that_makes_the_group_are_seen",
        ),
        lacking="NCCL itself was not run: the tests have no two GPUs.",
    ),
    Row(
        asked="garbage collection, too many threads, throttling, quotas, vector instructions held "
        "down",
        checks=("gc-pauses", "too-many-threads", "throttling", "quota-used-up", "simd-capped"),
        fixes=("gc-freeze", "cpu-threads", "cpu-simd", "numa-binding"),
    ),
    Row(
        asked="graph breaks and recompilations of a program that uses torch.compile, with lines",
        checks=("graph-breaks", "recompilations"),
        tests=(
            f"{_COMPILING}::test_sizes_that_vary_are_seen_as_recompilations_with_their_line",
            f"{_COMPILING}::test_a_print_in_the_forward_is_a_graph_break_with_its_line",
            f"{_COMPILING}::test_a_trace_shows_what_is_compiled_in_its_steps_and_where_graphs_break",
        ),
    ),
    Row(asked="step outliers: first step, p99 over p50", checks=("step-outliers",)),
)
_ROWS_OF_FIXES = (
    Row(
        asked="loader workers (a sweep), persistent workers, prefetch factor, batches out of order",
        fixes=("loader-workers", "persistent-workers", "prefetch-factor", "in-order-off"),
    ),
    Row(asked="pinned memory and non-blocking copies", fixes=("pin-memory",)),
    Row(
        asked="prefetch to the device on a side stream",
        fixes=("device-prefetch",),
        tests=("tests/fixes/test_offered_commands.py::test_the_class_that_prefetches_is_python",),
    ),
    Row(asked="fast storage", fixes=("fast-storage",)),
    Row(asked="data access layer", fixes=("data-access-layer",)),
    Row(
        asked="decoded samples cached",
        fixes=("decoded-cache",),
        tests=(f"{_PROBED}::test_whether_samples_stay_the_same_is_seen_within_the_first_epoch",),
        lacking="Where launches end within the first epoch it is offered, not measured: making the "
        "samples of a window beforehand takes as long as a launch, and paired launches, whose "
        "blocks end by time, have no window that is known beforehand.",
    ),
    Row(asked="Arrow in place of CSV, JSON, Excel", fixes=("arrow-format",)),
    Row(
        asked="tensors made on the device; arrays shared, not copied",
        fixes=("tensor-on-device", "as-tensor"),
        tests=("tests/edits/test_tensor_edits.py::test_a_tensor_is_made_where_it_is_used",),
    ),
    Row(
        asked="synchronisation removed",
        fixes=("remove-sync",),
        tests=(
            "tests/edits/test_tensor_edits.py::test_a_sum_that_is_only_shown_stays_on_the_device",
            "tests/probe/test_ceilings.py::test_values_are_answered_from_the_iteration_before",
        ),
    ),
    Row(
        asked="fused pointwise operators, torch.compile: modes, regional, dynamic; what it costs",
        fixes=("torch-compile",),
        tests=(
            f"{_COMPILED}::test_a_graph_break_is_named_with_its_line",
            f"{_COMPILED}::test_compiling_in_every_step_is_said_with_what_changes",
            f"{_COMPILED}::test_repeated_blocks_are_compiled_once_for_all_by_the_fix_and_its_edit",
        ),
        lacking="reduce-overhead and max-autotune need a GPU, on which they have no test.",
    ),
    Row(
        asked="sizes padded to multiples",
        fixes=("pad-to-multiple",),
        tests=(_PADDED_TEST,),
        lacking="Products are timed alone, forward convolutions only; on a GPU without a test.",
    ),
    Row(
        asked="larger batch, to the memory's end; the gradient noise scale as useful limit",
        fixes=("larger-batch",),
        tests=(
            "tests/trials/test_sizes.py::"
            "test_a_size_that_does_not_fit_into_memory_ends_its_launch_and_says_so",
            f"{_PROBED}::test_gradients_of_a_few_more_steps_give_the_noise_scale",
        ),
        lacking="The search on a GPU's own out-of-memory errors is not run by a test.",
    ),
    Row(asked="gradient accumulation", fixes=("gradient-accumulation",)),
    Row(
        asked="mixed precision, TF32",
        fixes=("mixed-precision", "tf32"),
        tests=(
            f"{_FLOAT16}::test_a_step_whose_gradients_overflow_is_left_out_and_the_scale_is_halved",
            f"{_FLOAT16}::test_what_cannot_be_unscaled_is_refused[GradScaler]",
        ),
        lacking="float16 with scaled gradients is tested on a CPU, and was not run on a GPU.",
    ),
    Row(
        asked="float32 in place of float64",
        fixes=("single-precision",),
        tests=(
            "tests/edits/test_precision_edits.py::"
            "test_every_loop_that_hands_such_batches_to_the_model_is_found",
        ),
    ),
    Row(asked="gradients set to None", fixes=("set-to-none",)),
    Row(asked="evaluation without gradients", fixes=("no-grad-evaluation",)),
    Row(asked="cudnn.benchmark", fixes=("cudnn-benchmark",)),
    Row(asked="channels last", fixes=("channels-last",)),
    Row(asked="no bias before batch normalization", fixes=("conv-bias-off",)),
    Row(
        asked="DistributedDataParallel",
        fixes=("ddp",),
        tests=(f"{_COMMANDS}::test_the_lines_for_one_process_a_gpu_train_as_one_process_does",),
        lacking="The lines are given, no source is edited; gloo runs them, no NCCL.",
    ),
    Row(
        asked="FSDP, pipeline, several machines",
        fixes=("fsdp", "pipeline-split", "several-machines"),
        tests=(
            f"{_COMMANDS}::"
            "test_the_lines_that_shard_a_model_train_as_one_process_does[fully_shard]",
            f"{_COMMANDS}::test_the_lines_that_split_a_model_train_as_one_process_does",
            f"{_COMMANDS}::test_the_command_for_two_machines_is_what_the_slurm_script_starts",
            f"{_COMMANDS}::test_the_slurm_script_trains_on_every_node",
        ),
        lacking="They run on one machine with gloo and a stand-in for Slurm: no GPU, no network.",
    ),
    Row(
        asked="a scaling estimate",
        fixes=("ddp", "fsdp", "several-machines"),
        tests=(
            f"{_SCALING}::test_the_backward_pass_hides_all_but_the_last_bucket",
            f"{_SCALING}::test_a_trace_of_one_gpu_is_predicted_from_its_data_sheet",
            f"{_SCALING}::test_measured_links_come_before_the_data_sheet",
        ),
        lacking="A model of gradients alone; it was held against recorded exchanges, never against "
        "the same program on more GPUs.",
    ),
    Row(asked="the GPU that idles", fixes=("use-the-gpu",), checks=("gpu-left-idle",)),
    Row(asked="a better GPU", fixes=("better-gpu",)),
    Row(
        asked="graphs released (detach, item)",
        fixes=("release-graph",),
        tests=("tests/edits/test_tensor_edits.py::test_what_is_kept_loses_its_graph",),
    ),
    Row(asked="fused or foreach optimizer; AdamW", fixes=("fused-optimizer", "adamw")),
    Row(
        asked="inference: batches, graphs",
        fixes=("batched-inference", "cuda-graphs"),
        checks=("launches-outside-graphs",),
        tests=(f"{_WINDOWS}::test_a_compiled_program_that_waits_for_launches_is_offered_graphs",),
    ),
    Row(
        asked="evaluation mode (model.eval)",
        fixes=("eval-mode",),
        checks=("training-mode-left-on",),
        tests=(
            f"{_WINDOWS}::test_dropout_without_a_backward_pass_is_training_mode",
            f"{_INFERRING}::test_training_mode_and_graphs_are_seen",
        ),
    ),
    Row(
        asked="inference: gradients recorded (no_grad, inference_mode)",
        fixes=("inference-mode",),
        checks=("inference-with-gradients",),
        tests=(f"{_INFERRING}::test_training_mode_and_graphs_are_seen",),
    ),
    Row(
        asked="inference: padding, decoding without a cache of keys and values",
        fixes=("pad-to-longest", "sorted-batches", "key-value-cache"),
        checks=("padded-tokens", "decoding-without-cache"),
        tests=(
            f"{_INFERRING}::test_padding_at_the_end_of_all_rows_is_seen",
            f"{_INFERRING}::test_decoding_the_whole_sequence_again_is_seen",
            "tests/edits/test_kept_models.py::test_a_cache_that_is_switched_off_is_switched_on",
        ),
        lacking="Sorting texts by length is code to apply by hand: only whole passes compare it, "
        "and only the program knows whose a result is. So is a cache in a loop that decodes by "
        "hand.",
    ),
    Row(
        asked="inference: outputs read after each batch",
        checks=("outputs-read-each-batch",),
        fixes=("remove-sync",),
    ),
    Row(
        asked="tokenizing by one thread in the loop",
        checks=("tokenizing",),
        lacking="It is told and not tried: which tokenizer is as good, the model decides.",
    ),
    Row(
        asked="inference: weights in bfloat16 on CPUs that compute in it",
        fixes=("bfloat16-weights",),
    ),
    Row(
        asked="inference: int8 weights on a CPU",
        fixes=("int8-weights",),
        tests=(
            "tests/fixes/test_int8_weights.py::test_the_model_is_what_it_was_when_it_is_taken_back",
        ),
        lacking="On a GPU it is not tried, and torchao is taken only where torch has it no more.",
    ),
    Row(
        asked="inference: ONNX Runtime, a cache of fixed size",
        fixes=("onnx-runtime", "static-cache"),
        tests=("tests/fixes/test_fix_examples.py::test_is_offered_with_what_to_write",),
        lacking="They are code to apply by hand: it was run on CPUs, and no run tries it.",
    ),
    Row(
        asked="inference: float16 on a CPU",
        fixes=("float32-on-cpu",),
        checks=("half-on-cpu",),
    ),
    Row(
        asked="inference: a model made for each request",
        checks=("model-made-anew",),
        fixes=("keep-model",),
        tests=(
            f"{_INFERRING}::test_a_model_made_for_each_request_is_seen",
            "tests/edits/test_kept_models.py::test_what_makes_the_model_runs_once_for_each_path",
            "tests/fixes/test_keep_model.py::test_statements_of_a_request_make_their_model_once",
        ),
    ),
    Row(
        asked="calls of the program's own: the same again, built anew, only reporting, growing",
        fixes=(
            *("keep-result", "keep-open", "every-tenth-call", "list-for-deque", "join-once"),
            *("keep-activations", "read-without-copy"),
        ),
        checks=("hot-call", "growing-step", "copied-objects", "inner-loop", "epoch-start"),
        tests=(
            "tests/test_known_shapes.py::test_the_cure_is_of_the_line_that_is_named",
            "tests/edits/test_unused_results.py::"
            "test_a_result_that_training_reads_is_not_only_reported",
            "tests/recording/test_growth.py::test_a_phase_that_grows_is_told_with_its_slope",
            "tests/fixes/test_shared_copies.py::test_a_copy_that_is_changed_stays_one",
            "tests/checks/test_epoch_start.py::"
            "test_the_beginning_has_its_share_and_line_and_samples_the_rest",
        ),
        lacking="Loops over small pieces are bounded by their line's share, and not tried; of "
        "copies those of tensors alone are.",
    ),
    Row(
        asked="gradients exchanged in each backward pass that only accumulates",
        fixes=("no-sync",),
        checks=("accumulated-exchange",),
        tests=("tests/fixes/test_fix_examples.py::test_with_the_fix",),
        lacking="No patch: which batch of an update is the last stands in the loop's own words.",
    ),
    Row(
        asked="samples fetched one by one; gradients of whole embedding tables",
        fixes=("batched-fetching", "sparse-embedding"),
        checks=("dense-embedding",),
    ),
    Row(asked="activation checkpointing", fixes=("activation-checkpointing",)),
    Row(asked="debugging turned off", fixes=("debug-off",)),
    Row(
        asked="gradient clipping, averaged weights, schedules, normalization",
        fixes=("gradient-clipping", "ema-foreach", "lr-schedule", "normalization"),
        tests=(f"{_PROBED}::test_how_training_is_set_up_is_seen",),
        lacking="They are offered as code and not tried; an average that is no torch AveragedModel "
        "is not seen.",
    ),
    Row(
        asked="threads, allocator, vector instructions, bfloat16 products, memory node, collector",
        fixes=(
            "cpu-threads",
            "allocator",
            "cpu-simd",
            "cpu-bfloat16-products",
            "numa-binding",
            "gc-freeze",
        ),
        tests=(
            "tests/fixes/test_environment_fixes.py::"
            "test_an_installed_allocator_is_really_in_the_process",
        ),
    ),
    Row(asked="fused attention", fixes=("attention", "torch-compile")),
)
TABLES = {"Asked of the diagnosis": _ROWS_OF_CHECKS, "Asked of the fixes": _ROWS_OF_FIXES}
# Named by a row before their file is there; whoever adds the file takes its id out of here.
AWAITED: frozenset[str] = frozenset()
