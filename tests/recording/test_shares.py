from __future__ import annotations

from dataclasses import replace

import pytest
from partial_recordings import recording

from torchdoctor.checks import memcpy_share
from torchdoctor.observe.shares import share_doubts, shares, with_inline_preparation
from torchdoctor.queries.stacks import share_showing
from torchdoctor.schema import Operator, SensorStatistics, Shares, TraceStatistics

ON_GPU = {"gpu": 0.5, "memcpy": 0.0, "memset": 0.0, "communication": 0.0, "runtime": 0.1}


def steps(**more):
    return recording({"steps": more}).steps


def gpu_trace(step_s=0.010, **known):
    values = {**ON_GPU, "data_loader": 0.2, "cpu": 0.2, "other": 0.0, **known}
    return TraceStatistics(
        path="t", steps=4, step_s=step_s, has_device=True, shares=Shares(**values)
    )


def total(known):
    return sum(value for value in vars(known).values() if value is not None)


def test_on_a_cpu_the_phases_count():
    known = shares(steps(data_wait_s=0.003, forward_s=0.002, backward_s=0.003, other_s=0.002), None)
    assert known.data_loader == pytest.approx(0.3)
    assert known.cpu == pytest.approx(0.5)
    assert known.other == pytest.approx(0.2)
    assert (known.gpu, known.memcpy, known.communication) == (None, None, None)


def test_operators_outside_any_phase_are_cpu():
    trace = TraceStatistics(
        path="t", steps=4, step_s=0.012, compute_s=0.008, small_operator_s=0.0016
    )
    known = shares(steps(data_wait_s=0.001, backward_s=0.004, other_s=0.005), trace)
    assert known.cpu == pytest.approx(0.8)
    assert total(known) == pytest.approx(1.0)


def test_collectives_on_a_cpu_are_no_computation():
    trace = TraceStatistics(path="t", steps=4, step_s=0.01, shares=Shares(communication=0.4))
    known = shares(steps(forward_s=0.003, backward_s=0.007), trace)
    assert known.communication == pytest.approx(0.4)
    assert known.cpu == pytest.approx(0.6)


def test_collectives_of_the_loop_itself_are_no_other_time():
    """78 % of communication were said beside a bar of 44 %: all that the model computed."""
    trace = TraceStatistics(path="t", steps=4, step_s=0.01, shares=Shares(communication=0.7))
    known = shares(
        steps(data_wait_s=0.001, forward_s=0.001, backward_s=0.002, other_s=0.006), trace
    )
    assert known.communication == pytest.approx(0.7)
    assert known.cpu == pytest.approx(0.2)
    assert total(known) == pytest.approx(1.0)


ON_HOST = TraceStatistics(
    path="t",
    steps=4,
    step_s=0.01,
    compute_s=0.0085,
    small_operator_s=0.001,
    operators=[
        Operator(name="aten::_local_scalar_dense", calls_per_step=1.0, self_s=0.007),
        Operator(name="aten::add_", calls_per_step=30.0, self_s=0.0015),
    ],
)
UNSEEN = SensorStatistics()  # as of a device that neither a trace nor NVML shows


def test_what_the_host_waits_for_a_value_is_time_of_a_device_that_no_trace_shows():
    by_host = steps(forward_s=0.0002, backward_s=0.0003, other_s=0.0095)
    known = shares(by_host, ON_HOST, device=UNSEEN)
    assert known.gpu == pytest.approx(0.7)
    assert total(known) == pytest.approx(1.0)
    little = replace(ON_HOST, operators=ON_HOST.operators[1:])
    known = shares(by_host, little, device=UNSEEN)
    assert (known.gpu, known.cpu, known.other) == (None, None, None)


def test_events_that_a_device_comes_to_behind_the_host_show_that_it_is_busy():
    behind = steps(backward_s=0.008, other_s=0.002, device_clock=True, device_busy_s=0.008)
    known = shares(behind, None, device=UNSEEN)
    assert (known.gpu, known.cpu) == (pytest.approx(0.8), pytest.approx(0.0, abs=1e-9))
    assert known.other == pytest.approx(0.2)
    in_step = replace(behind, device_busy_s=0.001)  # it may have been busy all the same
    assert shares(in_step, None, device=UNSEEN).gpu is None
    measured = SensorStatistics(gpu_utilization=0.3)
    assert shares(in_step, None, device=measured).gpu == pytest.approx(0.3)


def test_on_a_gpu_the_trace_counts():
    trace = gpu_trace()
    seen = steps(data_wait_s=0.0025)
    assert shares(seen, trace) == trace.shares
    assert shares(None, trace) == trace.shares


def test_a_wait_that_the_profiler_made_longer_is_corrected():
    # Unprofiled, a step of 10 ms waits 0.4 ms; the profiled one 20 % of 20 ms.
    trace, seen = gpu_trace(step_s=0.020, gpu=0.3, cpu=0.4), steps(data_wait_s=0.0004)
    known = shares(seen, trace)
    assert known.data_loader == pytest.approx(0.04)
    assert total(known) == pytest.approx(1.0)
    assert share_doubts(seen, trace) == []


def test_the_profiler_lengthens_what_the_host_does_and_nothing_on_the_device():
    """300 kernels of 2 us in a step of 10 ms, of which the profiler makes one of 20 ms."""
    trace = gpu_trace(step_s=0.020, gpu=0.05, memcpy=0.02, cpu=0.63, data_loader=0.2)
    known = shares(steps(data_wait_s=0.004), trace)
    assert (known.gpu, known.memcpy) == (pytest.approx(0.1), pytest.approx(0.04))
    assert known.data_loader == pytest.approx(0.4)
    assert known.runtime / known.cpu == pytest.approx(0.1 / 0.63)
    assert total(known) == pytest.approx(1.0)
    # Where real steps differ as much, the profiled ones may be long batches: their shares stand.
    assert shares(steps(data_wait_s=0.002, p90_s=0.045), trace).gpu == 0.05


def test_blocked_copies_are_no_more_than_the_drivers_calls():
    trace = replace(gpu_trace(step_s=0.020), blocking_copy_exposed_s=0.002)
    known = Shares(gpu=0.02, memcpy=0.90, runtime=0.04, data_loader=0.0, cpu=0.04, other=0.0)
    question = memcpy_share.CHECK.question
    assert question is not None
    assert question.measure(replace(recording(), trace=trace, shares=known)) == pytest.approx(0.94)


def test_a_wait_that_the_profiler_hid_is_corrected():
    # 6 ms of each 10 ms step are waited for, and the device works 2 ms of it.
    trace = gpu_trace(step_s=0.020, gpu=0.1, data_loader=0.1, cpu=0.7)
    assert shares(steps(data_wait_s=0.006), trace).data_loader == pytest.approx(0.6)


def test_a_wait_behind_a_busy_gpu_is_none():
    # The host waits 8 ms for data, but the kernels take 9.5 of 10 ms: hardly any is exposed.
    trace = gpu_trace(gpu=0.95, data_loader=0.01, cpu=0.0, runtime=0.04)
    assert shares(steps(data_wait_s=0.008), trace) == trace.shares


def test_nothing_measured():
    assert shares(None, None) == Shares()
    assert shares(steps(mean_s=0.0), None) == Shares()


STACK = {
    "location": {"file": "/w/train.py", "line": 40, "function": "main"},
    "phase": "after_step",
    "count": 30,
    "leaf_file": "w/train.py",
    "leaf_function": "main",
}


def with_stacks(*rows, shares=None, **more):
    seen = recording(
        {
            "steps": {
                "boundary": {"kind": "optimizer"},
                "before_forward_s": 0.006,
                **more.pop("steps", {}),
            },
            "processes": [{"pid": 1, "stacks": [{**STACK, **row} for row in rows], **more}],
        }
    )
    return replace(seen, shares=shares or Shares(data_loader=0.0, cpu=0.35, other=0.65))


def test_inline_preparation_moves_to_the_data_loader():
    seen = with_inline_preparation(with_stacks({"text": "x = make(rows)"})).shares
    assert seen.data_loader == pytest.approx(0.6)
    assert seen.other == pytest.approx(0.05)
    assert seen.cpu == pytest.approx(0.35)


def test_what_the_trace_saw_of_it_in_operators_moves_too():
    known = Shares(data_loader=0.0, cpu=0.9, other=0.1)
    seen = with_inline_preparation(with_stacks({"text": "x = make(rows)"}, shares=known)).shares
    assert seen.data_loader == pytest.approx(0.6)
    assert (seen.other, seen.cpu) == (0.0, pytest.approx(0.4))


@pytest.mark.parametrize(
    "text",
    [
        "total += loss.item()",
        "optimizer.zero_grad()",
        "print(step, loss)",
        "scheduler.step()",
        "logger.info(loss)",
        "p.grad = None",
        "torch.save(model.state_dict(), path)",
    ],
)
def test_lines_that_prepare_no_batch_do_not_count(text):
    seen = with_stacks({"text": text, "count": 90}, {"text": "x = make(rows)", "count": 10})
    assert with_inline_preparation(seen).shares.data_loader == pytest.approx(0.06)


def test_a_library_function_below_such_a_line_counts():
    seen = with_stacks(
        {"text": "print(make(rows))", "leaf_file": "PIL/Image.py", "leaf_function": "decode"}
    )
    assert with_inline_preparation(seen).shares.data_loader == pytest.approx(0.6)


def test_a_copy_counts_only_where_it_copies_nothing():
    text = {"text": "x = torch.stack(rows).to(device)"}
    assert with_inline_preparation(with_stacks(text)).shares.data_loader == pytest.approx(0.6)
    on_gpu = with_stacks(text, models=[{"ident": 0, "device": "cuda:0"}])
    assert with_inline_preparation(on_gpu).shares.data_loader == 0.0


def test_what_stands_behind_the_models_call_works_on_the_step_that_was():
    average = {"text": "average(model)", "behind_forward": True, "count": 90}
    seen = with_stacks(average, {"text": "x = make(rows)", "count": 10})
    assert with_inline_preparation(seen).shares.data_loader == pytest.approx(0.06)


def test_what_a_program_that_infers_does_with_an_output_prepares_nothing():
    """Its user was told to move into a DataLoader what works on the output."""
    calls = {"boundary": {"kind": "forward", "learned_by": "forward"}}
    joined = {"text": "kept = torch.cat([kept, out])", "phase": "other", "behind_forward": True}
    made = {"text": "x = make(rows)", "phase": "other"}
    seen = with_stacks({**joined, "count": 80}, {**made, "count": 20}, steps=calls)
    known = with_inline_preparation(seen).shares
    assert known.data_loader == pytest.approx(0.6 * 0.2)
    assert share_showing(seen, "outside") == pytest.approx(0.8)


def test_with_a_loader_only_the_time_after_a_fetch_counts():
    loader = {"boundary": {"kind": "loader"}}
    logging = with_stacks({"text": "save(x)"}, steps=loader)
    after = with_stacks({"text": "x = augment(x)", "phase": "before_forward"}, steps=loader)
    # No sample after a fetch, and a loader feeds the loop: nothing says that a batch is prepared.
    loaders = [{"ident": 0, "batches": 100}]
    logging = replace(logging, processes=[replace(logging.main, loaders=_loaders(loaders))])
    assert with_inline_preparation(logging).shares.data_loader == 0.0
    assert with_inline_preparation(after).shares.data_loader == pytest.approx(0.6)


def _loaders(rows):
    return recording({"processes": [{"pid": 1, "loaders": rows}]}).main.loaders


def test_a_forward_that_no_module_shows_is_no_preparation():
    """Samples of a step without a module's call: a third prepares, the rest computes."""
    rows = (
        {"text": "x = make(rows)", "count": 30},
        {"text": "loss = mlp(x)", "count": 60, "records_graph": True},
    )
    seen = with_stacks(*rows, {"phase": "backward", "count": 10})
    assert share_showing(seen, "computes") == pytest.approx(0.6)
    known = shares(seen.steps, None, share_showing(seen, "computes"))
    assert known.cpu == 0.0  # the step log of the sample has no other time
    known = shares(replace(seen.steps, other_s=0.009), None, share_showing(seen, "computes"))
    assert known.cpu == pytest.approx(0.6)
    assert with_inline_preparation(seen).shares.data_loader == pytest.approx(0.2)


def test_a_metric_after_the_step_is_no_forward_where_a_loader_feeds_the_loop():
    row = {"text": "top5(out)", "records_graph": True}
    with_loader = with_stacks(row, steps={"boundary": {"kind": "loader"}})
    loaders = _loaders([{"ident": 0, "batches": 100}])
    with_loader = replace(with_loader, processes=[replace(with_loader.main, loaders=loaders)])
    assert share_showing(with_loader, "computes") == 0.0
    assert share_showing(with_stacks(row), "computes") == 1.0


def test_without_samples_or_a_modules_call_nothing_says_that_a_batch_is_prepared():
    assert with_inline_preparation(with_stacks()).shares.data_loader == 0.0
    called = with_stacks(models=[{"ident": 0, "forwards": 9}])
    assert with_inline_preparation(called).shares.data_loader == pytest.approx(0.6)


def test_profiled_steps_of_one_kind_stand_for_their_own_kind_alone():
    """PPO: the profiler sees a few updates, and rollouts are most of the time."""
    trace = TraceStatistics(path="t", steps=4, step_s=0.002, compute_s=0.0018, small_operator_s=0.0)
    seen = steps(forward_s=0.001, other_s=0.009, two_modes=True)
    assert shares(seen, trace).other == pytest.approx(0.82)


def test_a_models_own_forward_is_no_preparation_before_anything_is_recorded():
    """`model.forward(x)` that first normalises its input."""
    inside = {**STACK["location"], "function": "forward"}
    seen = with_stacks({"text": "x = x - x.mean()", "location": inside})
    assert with_inline_preparation(seen).shares.data_loader == 0.0
    assert share_showing(seen, "computes") == 1.0
    called = with_stacks({"text": "x = x - x.mean()", "location": inside, "phase": "forward"})
    assert share_showing(called, "computes") == 0.0


def test_a_wrapper_around_clearing_gradients_prepares_nothing():
    row = {
        "text": "optimizer.zero_grad()",
        "leaf_file": "torch/_dynamo/eval_frame.py",
        "leaf_function": "_fn",
    }
    assert with_inline_preparation(with_stacks(row)).shares.data_loader == 0.0
    row["text"] = "x = make(rows)"
    assert with_inline_preparation(with_stacks(row)).shares.data_loader == pytest.approx(0.6)


def cpu_trace(step_s, waiting=None):
    return TraceStatistics(path="t", steps=4, step_s=step_s, shares=Shares(data_loader=waiting))


def test_profiled_steps_unlike_the_real_ones_are_doubted_without_a_gpu():
    seen = steps(mean_s=0.049, data_wait_s=0.79 * 0.049)
    [doubt] = share_doubts(seen, cpu_trace(0.399, 0.10))
    assert doubt.fact == "profiled-steps-differ"
    assert doubt.values == pytest.approx(
        {"profiled_s": 0.399, "real_s": 0.049, "profiled_wait": 0.10, "real_wait": 0.79}
    )
    [unwaited] = share_doubts(seen, cpu_trace(0.399))
    assert unwaited.values["profiled_wait"] is unwaited.values["real_wait"] is None
    # "And waited for data 0 % of them instead of 0 %", of a program without a DataLoader.
    [equal] = share_doubts(steps(mean_s=0.049, data_wait_s=0.0), cpu_trace(0.399, 0.0))
    assert equal.values["profiled_wait"] is equal.values["real_wait"] is None
    assert share_doubts(seen, cpu_trace(0.049, 0.6)) != []
    assert share_doubts(seen, cpu_trace(0.060, 0.75)) == []
    assert share_doubts(None, cpu_trace(0.399, 0.10)) == []
