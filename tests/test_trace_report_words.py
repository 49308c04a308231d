"""What a reader of `diagnose` takes from its words: figures, units and names that hold."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import msgspec
import pytest
from compared_pairs import diagnosed, samples, synthetic
from in_words import evidence_of
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.reports.document import prose
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.traced import lines as traced_lines
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report, TraceStatistics
from torchdoctor.schema.figures import counted, percent
from torchdoctor.schema.report import StepTime


def of_steps(folder: Path, *milliseconds: float) -> Report:
    trace, at = synthetic.TraceBuilder(), 0.0
    for number, one in enumerate(milliseconds):
        trace.step(number, at, at + 1e3 * one)
        trace.operator("aten::mm", at, at + 900 * one)
        at += 1e3 * one
    return diagnosed(folder, "trace.json", trace)


def test_the_median_of_two_steps_lies_between_them(tmp_path: Path) -> None:
    """608 and 631 ms: "step 631 ms", and TensorBoard drew another figure beside it."""
    time = of_steps(tmp_path, 608, 631).baseline.step_time_s
    assert time is not None
    assert time.median == pytest.approx(0.6195)
    assert 0.608 < time.p10 < time.median < time.p90 < 0.631


@pytest.mark.parametrize("times", [[3.0], [2.0, 1.0], [5.0, 1.0, 2.0], [4.0, 3.0, 2.0, 9.0, 1.0]])
def test_quantiles_are_numpys(times: list[float]) -> None:
    numpy = pytest.importorskip("numpy")
    found = StepTime.of(times)
    expected = numpy.quantile(times, [0.1, 0.5, 0.9])
    assert [found.p10, found.median, found.p90] == pytest.approx(list(expected))


def offered(report: Report) -> dict[str, str]:
    return {fix.fix: fix.instruction or "" for fix in report.recommendation.also_offered}


def many_small(folder: Path, operator: str = "aten::_foreach_add_") -> Report:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        for kernel in range(60):
            begin = at + 15 * kernel
            trace.operator(operator, begin, begin + 14)
            launch = trace.call("cudaLaunchKernel", begin + 2, begin + 6)
            trace.kernel("vectorized_elementwise_kernel", begin + 7, begin + 9, launch)
    return diagnosed(folder, "trace.json", trace)


def test_a_larger_batch_is_offered_without_figures_that_nobody_saw(tmp_path: Path) -> None:
    """`batch_size=128)  # twice yours: here it was 64`: the trace held neither."""
    code = offered(many_small(tmp_path))["larger-batch"]
    assert "batch_size=2 * batch_size" in code and "lr=2 * lr" in code
    assert not any(invented in code for invented in ("here it was", "64", "0.1"))
    assert "changes training" in code


def test_inference_is_offered_nothing_of_training(tmp_path: Path) -> None:
    """Optimizers, learning rates and larger batches of training were offered to vLLM."""
    code = offered(many_small(tmp_path, "aten::add"))
    assert "inference_mode" in code["torch-compile"] and "torch.stack" in code["batched-inference"]
    assert not code.keys() & {"larger-batch", "fused-optimizer", "mixed-precision"}
    assert not re.search(r"loss|optimizer|backward|lr=", " ".join(code.values()))
    engine = many_small(tmp_path, "vllm::unified_attention_with_output")
    assert engine.trace is not None and engine.trace.has_engine
    assert set(offered(engine)) == {"batched-inference", "cuda-graphs"}
    assert "--max-num-seqs" in offered(engine)["batched-inference"]


def test_devices_are_named_by_the_makers_that_the_trace_names(tmp_path: Path) -> None:
    """One described GPU has number 0 where the profiler counts to 9; AMD has no capability 9.4."""
    trace = synthetic.TraceBuilder()
    trace.device = 9
    trace.step(0, 0, 100)
    trace.kernel("volta_sgemm_128x64_nn", 10, 90, trace.call("hipLaunchKernel", 2, 5))
    card = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}
    (tmp_path / "t.json").write_bytes(trace.text(deviceProperties=[card]))
    report = trace_checkup([str(tmp_path / "t.json")])
    [gpu] = report.environment.gpus
    assert (gpu.index, gpu.name, gpu.compute_capability) == (9, "AMD Instinct MI300X", None)
    assert report.trace is not None and report.trace.platform == "rocm"
    assert "tf32" not in offered(report)


_WORK = {"flops": 1e12, "device_s": 0.03, "known_share": 1.0}


def padding_advice(operator: str, dimension: str, size: int) -> str:
    uneven = [{"dimension": dimension, "size": size, "multiple": 8}]
    product = {"operator": operator, "sizes": "s", "precision": "bfloat16", "uneven": uneven}
    product |= {"calls_per_step": 24.0, "flops": 1e12, "device_s": 0.03}
    trace = {"path": "t", "steps": 4, "step_s": 0.1}
    trace["matrix_work"] = {**_WORK, "products": [product]}
    code: str = catalogue.fixes()["pad-to-multiple"].advice(recording({"trace": trace}))
    return code


def test_padding_is_worded_by_the_size_that_was_found() -> None:
    """5185, a sequence in a batched product, got `vocabulary = ...` and `GPT(vocab_size=...)`."""
    sequence = padding_advice("aten::bmm", "columns", 5185)
    assert "5185 -> 5192" in sequence and "sequence" in sequence
    assert "vocabulary" not in sequence and "vocab_size" not in sequence
    assert "vocabulary" in padding_advice("aten::mm", "columns", 50257)
    assert "channels" in padding_advice("aten::cudnn_convolution", "input channels", 3001)


def test_attention_is_offered_without_a_mask_that_the_model_may_not_have() -> None:
    module = catalogue.fixes()["attention"]
    for code in (module.permanent_form, module.instruction({}, recording())):
        calls = [line for line in code.splitlines() if not line.startswith("#")]
        assert "is_causal" not in "\n".join(calls)
        assert "is_causal=True" in code  # said where it belongs


def without_steps(trace):
    trace.events = [event for event in trace.events if "ProfilerStep" not in event["name"]]
    return trace


FORMATS = ["terminal", "html", "markdown"]


def test_without_step_marks_no_figure_is_per_step(tmp_path: Path) -> None:
    """Driver calls "per step" stood beside "in the whole trace"."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        trace = without_steps(synthetic.every_branch())
        text = trace.text(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 2})
        (folder / f"{rank}.json").write_bytes(text)
    report = trace_checkup([str(folder)])
    assert report.ranks
    for form in FORMATS:
        text = " ".join(rendered(report, form).split())
        titles = [title for title, lines in traced_lines(report) if lines]
        assert len(titles) >= 3 and all(title in text for title in titles)
        assert "per step" not in text and "rank 0: step" not in text


def test_a_trace_that_names_no_machine_is_measured_on_none(tmp_path: Path) -> None:
    """The page ended with "Measured on . ", the terminal's section repeated the command."""
    report = of_steps(tmp_path, 1, 1, 1, 1)
    for form in FORMATS:
        assert "Measured on" not in rendered(report, form)


def test_the_title_of_a_page_is_a_whole_sentence(tmp_path: Path) -> None:
    """It ended in "Nothing was tried: a trace"."""
    report = of_steps(tmp_path, 1, 1, 1, 1)
    title = re.search("<title>(.*?)</title>", rendered(report, "html"))
    assert title is not None
    assert title[1].endswith(".") and "Nothing was tried" not in title[1]
    assert unescape(title[1].removeprefix("torchdoctor: ")) in prose(report.diagnosis.sentence)


def test_separate_recordings_have_no_ranks_clocks(tmp_path: Path) -> None:
    """Years apart: "taken for separate recordings", and then "The ranks' clocks are ..."."""
    for number in (0, 1):
        trace = synthetic.TraceBuilder(base=synthetic.BASE + number * 1e13)
        for step in range(4):
            trace.step(step, 1e3 * step, 1e3 * step + 1e3)
            trace.operator("aten::mm", 1e3 * step, 1e3 * step + 900)
        (tmp_path / f"{number}.json").write_bytes(trace.text())
    doubts = trace_checkup([str(tmp_path)]).doubts
    assert any("separate recordings" in doubt for doubt in doubts)
    assert not any("ranks' clocks" in doubt for doubt in doubts)


def traced(**more) -> Report:
    trace = {"path": "t", "steps": 4, "step_s": 0.1, "has_device": True, **more}
    report = samples.diagnosed_only()
    return replace(
        report,
        trace=msgspec.convert(trace, TraceStatistics),
        environment=replace(report.environment, gpus=[]),
    )


def lines_of(report: Report) -> str:
    return "\n".join(line for _, lines in traced_lines(report) for line in lines)


def test_what_is_cut_or_not_known_says_so() -> None:
    """A name ended in "CppNode<SplitLookupFunc:", as if it were one."""
    name = "torch::autograd::CppNode<SplitLookupFunction_sum_Op>"
    product = {"operator": "aten::mm", "sizes": "s", "precision": "float32", "calls_per_step": 1.0}
    work = {**_WORK, "products": [product | {"flops": 1e12, "device_s": 0.03}]}
    operators = [{"name": name, "calls_per_step": 1.0, "self_s": 0.1, "device_s": 0.1}]
    calls = [{"name": name, "operator": "aten::copy_", "calls_per_step": 1.0, "host_s": 0.1}]
    report = traced(matrix_work=work, operators=operators, runtime_calls=calls)
    said = lines_of(report)
    assert said.count(f"{name[:37]}...") == 2
    [mfu] = [line for line in said.splitlines() if line.startswith("MFU: ")]
    assert not re.search(r"\d", mfu), "no data sheet is known"
    known = {"mfu": 0.31, "gpu": "a card"}
    assert f"MFU: {percent(0.31)}" in lines_of(traced(matrix_work={**work, **known}))


def test_a_scripts_own_level_has_no_line_that_the_trace_does_not_know() -> None:
    places = [
        {"file": "own.py", "line": 21, "function": "<module>", "other_s": 0.09},
        {"file": "rec.py", "line": 27, "function": "train", "other_s": 0.0001},
    ]
    trace = {"path": "t", "steps": 4, "step_s": 0.1, "outside_s": 0.095, "python_places": places}
    seen = recording({"steps": None, "shares": {"other": 0.95}, "trace": trace})
    [found] = catalogue.checks()["outside-operators"].findings(seen)
    assert found.location is None
    [passed] = [fact for fact in found.evidence if fact.fact == "passes-in"]
    [place] = passed.values["places"]
    assert (place["file"], place["line"], place["function"]) == ("own.py", None, None)
    assert place["of_step"] == pytest.approx(0.9)
    assert any(place["own_level"] in sentence for sentence in evidence_of(found, seen))
    assert "own.py:21" not in lines_of(traced(python_places=places))


def test_a_single_event_has_its_verb(tmp_path: Path) -> None:
    trace = without_steps(synthetic.every_branch())
    trace.slice("cpu_op", "aten::mm", 200_000, 199_000)
    remarks = diagnosed(tmp_path, "trace.json", trace).remarks
    [remark] = [x for x in remarks if x.fact == "events-without-duration"]
    assert remark.values["lost"] == 1 and counted(1, "event") in remark.sentence
