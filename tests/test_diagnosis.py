from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import recorded_traces
from illnesses import CPU_ILLNESSES, GPU_ILLNESSES, TUNED
from in_words import in_words
from partial_recordings import merged, recording
from told_facts import answers

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.observe.shares import shares, with_inline_preparation
from torchdoctor.runs.run import _Checkup
from torchdoctor.schema import BRANCHES, Diagnosis, Environment, Recording, Shares, Workload, fact

ILLNESSES = {**CPU_ILLNESSES, **GPU_ILLNESSES}


def observed(partial) -> Recording:
    """As a run makes it."""
    seen = recording(partial)
    device = seen.sensors if seen.has_gpu else None
    known = shares(seen.steps, seen.trace, device=device)
    return with_inline_preparation(replace(seen, shares=known))


def diagnosis(partial):
    return diagnose(observed(partial), catalogue.checks(), catalogue.fixes())


def of_shares(**known):
    seen = replace(recording(), shares=Shares(**known))
    return diagnose(seen, catalogue.checks(), catalogue.fixes())


@pytest.mark.parametrize("name", ILLNESSES)
def test_illness(name):
    partial, bottleneck, detail, others = ILLNESSES[name]
    answer = diagnosis(partial)
    assert (answer.bottleneck, answer.detail) == (bottleneck, detail), answer.findings
    assert others <= {finding.check for finding in answer.findings}
    assert "%" in in_words(answer, observed(partial)).sentence


@pytest.mark.parametrize(("there", "line"), [(80, 9), (30, None)])
def test_operators_are_placed_at_the_line_that_half_of_the_forward_lies_in(there, line):
    partial = copy.deepcopy(ILLNESSES["many small operators"][0])
    at = {"file": "/w/train.py", "function": "forward"}
    partial["processes"][0]["stacks"] = [
        {"location": {**at, "line": 9}, "phase": "forward", "count": there},
        {"location": {**at, "line": 10}, "phase": "forward", "count": 40},
        {"location": {**at, "line": 11}, "phase": "forward", "count": 30},
        {"location": {**at, "line": 15}, "phase": "backward", "count": 200},
    ]
    found = {finding.check: finding.location for finding in diagnosis(partial).findings}
    location = found["many-small-kernels"]
    assert (location.line if location is not None else None) == line


@pytest.mark.parametrize("name", ILLNESSES)
def test_shares_of_an_illness_sum_to_one(name):
    known = observed(ILLNESSES[name][0]).shares
    values = [v for v in vars(known).values() if v is not None]
    assert sum(values) == pytest.approx(1.0)
    assert min(values) >= 0.0


@pytest.mark.parametrize("name", ILLNESSES)
def test_the_path_says_figure_threshold_and_source(name):
    path = diagnosis(ILLNESSES[name][0]).path
    assert len(path) in (5, 6)
    for question in path:
        assert question.question.endswith("?")
        assert question.metric
        assert question.threshold is not None
        assert question.source
        measured = question.answer in ("yes", "no")
        assert (question.value is not None) == measured
        if measured:
            assert (question.answer == "yes") == (question.value >= question.threshold)


@pytest.mark.parametrize("name", CPU_ILLNESSES)
def test_without_a_gpu_its_questions_say_so(name):
    told = answers(diagnosis(CPU_ILLNESSES[name][0]))
    assert told["memcpy-share"] == told["gpu-utilization"] == "no GPU"


def test_a_tuned_program_has_nothing_but_its_computation():
    answer = diagnosis(TUNED)
    assert (answer.bottleneck, answer.detail) == ("cpu", "compute")
    assert {finding.check for finding in answer.findings} == {"compute"}
    assert answer.findings[0].severity != "high"


def test_the_place_in_the_source_is_kept():
    answer = diagnosis(CPU_ILLNESSES["inline get_batch"][0])
    found = next(f for f in answer.findings if f.check == "inline-batch-preparation")
    assert (found.location.file, found.location.line) == ("/w/train.py", 40)


def test_findings_are_ordered_by_severity_and_cost():
    severity = {"high": 0, "moderate": 1, "advice": 2}
    for name, (partial, *_) in ILLNESSES.items():
        findings = diagnosis(partial).findings
        ranks = [severity[finding.severity] for finding in findings]
        assert ranks == sorted(ranks), name
        for rank in set(ranks):
            costs = [
                f.share_of_step
                for f in findings
                if severity[f.severity] == rank and f.share_of_step is not None
            ]
            assert costs == sorted(costs, reverse=True), name


def test_findings_name_the_fixes_that_treat_them():
    answer = diagnosis(CPU_ILLNESSES["slow decode"][0])
    treats = {ident: set(fix.treats) for ident, fix in catalogue.fixes().items()}
    for finding in answer.findings:
        assert set(finding.fixes) == {i for i, checks in treats.items() if finding.check in checks}
    cause = next(f for f in answer.findings if f.check == "loader-cpu-bound")
    assert "loader-workers" in cause.fixes


def test_a_high_wait_goes_before_a_larger_computation():
    assert of_shares(data_loader=0.33, memcpy=0.01, gpu=0.56, cpu=0.1).bottleneck == "data_loader"


def test_a_moderate_wait_does_not():
    answer = of_shares(data_loader=0.06, cpu=0.94)
    assert answer.bottleneck == "cpu"
    assert "data-wait" in {finding.check for finding in answer.findings}


def test_of_several_waits_of_a_gpu_the_largest_leads():
    """A host of 33 % beside an exchange of 21 %: the answer was to communicate less."""
    waits = of_shares(communication=0.21, gpu=0.46, cpu=0.33)
    assert waits.bottleneck == "cpu"
    assert of_shares(data_loader=0.4, gpu=0.25, cpu=0.35).bottleneck == "data_loader"
    # Without a GPU what computes is no wait, however large.
    assert of_shares(data_loader=0.25, cpu=0.75).bottleneck == "data_loader"


def test_a_busy_gpu_goes_before_the_host():
    assert of_shares(data_loader=0.0, memcpy=0.0, gpu=0.55, cpu=0.45).bottleneck == "gpu"


def test_communication_is_asked_with_several_devices_only():
    alone = of_shares(data_loader=0.0, memcpy=0.0, gpu=0.9, cpu=0.1)
    assert not any("communication" in q.question.lower() for q in alone.path)
    waiting = of_shares(data_loader=0.0, memcpy=0.0, communication=0.3, gpu=0.6, cpu=0.1)
    assert waiting.bottleneck == "communication"
    assert any("communicat" in q.metric for q in waiting.path)


def test_other_is_the_last_question():
    answer = of_shares(data_loader=0.05, cpu=0.25, other=0.7)
    assert answer.bottleneck == "other"
    assert answer.path[-1].answer == "yes"


def test_nothing_measured_is_no_bottleneck():
    answer = diagnose(recording({"steps": None}), catalogue.checks())
    assert answer.bottleneck == "none"
    assert answer.detail is None
    assert "not measured" in {question.answer for question in answer.path}


def test_bottlenecks_are_the_contracts():
    assert {illness[1] for illness in ILLNESSES.values()} <= {*BRANCHES, "none"}


def test_on_a_gpu_without_a_trace_nvml_answers():
    gpu = {"processes": [{"pid": 1, "models": [{"ident": 0, "device": "cuda:0"}]}]}
    phases = {"steps": {"forward_s": 0.004, "backward_s": 0.005, "other_s": 0.001}}
    busy = diagnosis(merged({**phases, "sensors": {"gpu_utilization": 0.9}}, gpu))
    assert busy.bottleneck == "gpu"
    idle = diagnosis(merged({**phases, "sensors": {"gpu_utilization": 0.2}}, gpu))
    assert idle.bottleneck == "cpu"
    unknown = diagnosis(merged(phases, gpu))
    assert {q.answer for q in unknown.path if "GPU" in q.question} == {"not measured"}


def test_on_a_gpu_without_a_trace_what_the_tree_asks_is_what_the_bar_shows():
    """The GPU computed 76 % of each step beside 99 % of CPU operators and Python."""
    gpu = {"processes": [{"pid": 1, "models": [{"ident": 0, "device": "cuda:0"}]}]}
    phases = {"steps": {"data_wait_s": 0.001, "forward_s": 0.004, "backward_s": 0.005}}
    seen = observed(merged({**phases, "sensors": {"gpu_utilization": 0.76}}, gpu)).shares
    assert (seen.data_loader, seen.gpu, seen.cpu) == pytest.approx((0.1, 0.76, 0.14))
    answers = diagnosis(merged({**phases, "sensors": {"gpu_utilization": 0.76}}, gpu)).path
    assert [q.value for q in answers if "CPU" in q.question] == pytest.approx([0.14])
    unknown = observed(merged(phases, gpu)).shares
    assert (unknown.data_loader, unknown.gpu, unknown.cpu) == (pytest.approx(0.1), None, None)


# The column "truth" of the traces' own page.
TRUTH = {
    "v100_resnet50_workers0": "data_loader",
    "v100_resnet50_workers4": "gpu",
    "v100_resnet50_list_root": "data_loader",
    "v100_memcpy_second": "gpu",
    "a100_blocking_memcpy": "memcpy",
    "a100_cpu_bound_ddp": "cpu",
    "h100_owlv2_data_loader": "data_loader",
    "h100_bert_launch_bound": "cpu",
}


def of_trace(name) -> Diagnosis:
    trace = recorded_traces.statistics(name)
    seen = Recording(
        workload=Workload(command=[], cwd="/"),
        environment=Environment(),
        trace=trace,
        shares=shares(None, trace),
    )
    return diagnose(seen, catalogue.checks(), catalogue.fixes())


@pytest.mark.parametrize("name", TRUTH)
def test_recorded_gpu_traces(name):
    answer = of_trace(name)
    assert answer.bottleneck == TRUTH[name], answer.path
    if name == "h100_bert_launch_bound":
        assert answer.detail == "many-small-kernels"
    if name == "a100_blocking_memcpy":
        assert answer.detail == "memcpy-share", "its batches come from pinned memory"
    if name == "v100_memcpy_second":
        # Copies are the next: of the waits the only one that is worth a finding.
        assert "memcpy-share" in {finding.check for finding in answer.findings}


def test_a_trace_without_steps_is_answered() -> None:
    answer = of_trace("v100_resnet50_no_steps")
    assert answer.bottleneck in BRANCHES
    assert {question.answer for question in answer.path} <= {"yes", "no"}


def test_a_trace_without_a_gpu_answers_no_gpu_and_never_zero() -> None:
    path = of_trace("cpu_only").path
    asked = [question for question in path if question.answer == "no GPU"]
    assert len(asked) == 2
    assert {question.value for question in asked} == {None}


def test_a_line_that_waits_is_seen_in_a_script_with_a_space_in_its_name() -> None:
    """The wait of "my train.py" for the GPU was told as work of the program."""
    where = {"file": "/w/my train.py", "line": 258, "function": "main"}
    stack = {
        "location": where,
        "phase": "after_backward",
        "count": 30,
        "leaf_file": "w/my train.py",
        "leaf_function": "main",
    }
    wait = {"kind": "wait", "name": "item", "location": where}
    process = {"pid": 1, "stacks": [stack], "tensor_calls": [wait]}
    seen = replace(recording({"processes": [process]}), shares=Shares(gpu=0.6, cpu=0.2, other=0.2))
    assert catalogue.checks()["work-outside-model"].findings(seen) == []


def test_a_larger_part_outside_the_model_is_said_beside_the_bottleneck() -> None:
    stack = {
        "phase": "after_step",
        "count": 60,
        "leaf_file": "w/train.py",
        "leaf_function": "accuracy",
        "text": "n += 1",
    }
    place = {"file": "/w/train.py", "line": 12, "function": "accuracy"}
    model = {**stack, "phase": "backward", "count": 40, "text": "loss.backward()"}
    seen = recording(
        {
            "shares": {"data_loader": 0.02, "cpu": 0.38, "other": 0.6},
            "processes": [{"pid": 1, "stacks": [{**s, "location": place} for s in (stack, model)]}],
        }
    )
    found = diagnose(seen, catalogue.checks())
    assert found.bottleneck == "cpu"
    assert (found.verdict.kind, found.verdict.share) == ("cpu_beside", pytest.approx(0.38))
    [quote] = found.verdict.beside
    assert quote.check == "work-outside-model" and quote.facts[0] == "outside"
    assert found.verdict.place is not None and found.verdict.place.line == 12
    assert in_words(found, seen).sentence.startswith("60%"), "the larger part is said first"


@pytest.mark.parametrize(
    ("file", "function", "words"),
    [
        ("w/train.py", "get_batch", "most often in get_batch at train.py:12"),
        ("lib/python3.11/threading.py", "wait", "The loop waits at train.py:12 for another thread"),
    ],
)
def test_the_verdict_says_where_batches_are_prepared_or_waited_for(
    file: str, function: str, words: str
) -> None:
    stack = {
        "location": {"file": "/w/train.py", "line": 12, "function": "get_batch"},
        "phase": "after_step",
        "count": 90,
        "leaf_file": file,
        "leaf_function": function,
    }
    seen = recording(
        {
            "steps": {"boundary": {"kind": "optimizer"}, "before_forward_s": 0.006},
            "shares": {"data_loader": 0.6, "cpu": 0.38, "other": 0.02},
            "processes": [{"pid": 1, "stacks": [stack]}],
        }
    )
    found = diagnose(seen, catalogue.checks())
    assert (found.verdict.kind, found.verdict.share) == ("data_loader", pytest.approx(0.6))
    assert words in in_words(found, seen).sentence


def test_the_start_of_a_program_is_no_diagnosis() -> None:
    """Three steps are mostly warm-up: naming a bottleneck from them would be a guess."""
    name = next(iter(CPU_ILLNESSES))
    seen = observed(CPU_ILLNESSES[name][0])
    short = replace(seen, steps=replace(seen.steps, program_ended=True, total_steps_seen=3))
    answer = diagnose(short, catalogue.checks(), catalogue.fixes())
    assert (answer.bottleneck, answer.findings) == ("none", [])
    assert answer.verdict.kind == "too_short" and answer.verdict.why.values == {"steps": 3}
    longer = replace(seen, steps=replace(short.steps, total_steps_seen=300))
    assert diagnose(longer, catalogue.checks(), catalogue.fixes()).bottleneck != "none"


def test_a_line_that_waits_for_the_gpu_is_no_work_of_the_program():
    """12 % of a GAN's step were told as work in `D_x = output.mean().item()`."""
    where = {"file": "/w/gan.py", "line": 258, "function": "main"}
    stack = {"location": where, "phase": "after_backward", "count": 30}
    wait = {"kind": "wait", "name": "item", "location": where}
    check = catalogue.checks()["work-outside-model"]

    def found(leaf=("w/gan.py", "main"), **facts):
        row = {**stack, "leaf_file": leaf[0], "leaf_function": leaf[1]}
        seen = recording({"processes": [{"pid": 1, "stacks": [row], **facts}]})
        return check.findings(replace(seen, shares=Shares(gpu=0.6, cpu=0.2, other=0.2)))

    assert found()
    assert found(tensor_calls=[wait]) == []
    assert found(("site-packages/torch/_tensor_str.py", "_str"), tensor_calls=[wait]) == []
    assert found(("sklearn/metrics/_ranking.py", "auc"), tensor_calls=[wait])


def test_without_a_profiler_window_the_rank_that_waits_longest_for_data_is_told() -> None:
    """Of two ranks, one slept in its loader; told was the other one's wait for it, as computing."""

    def observed(rank: int) -> SimpleNamespace:
        order = [SimpleNamespace(rank=rank), SimpleNamespace(rank=1 - rank)]
        steps = SimpleNamespace(trainers=2, data_wait_s=[0.0007, 0.071][rank])
        return SimpleNamespace(processes=order, steps=steps)

    taken: list[SimpleNamespace] = []
    checkup = SimpleNamespace(
        recorder=SimpleNamespace(observed_on=observed), _take=taken.append, doubts=[]
    )
    chosen = _Checkup._take_slowest(checkup, observed(0))  # type: ignore[arg-type]
    assert chosen is taken[0] and chosen.processes[0].rank == 1
    assert checkup.doubts == [fact("rank-waits-longest", rank=1)]
    alone = SimpleNamespace(processes=[SimpleNamespace(rank=None)], steps=observed(0).steps)
    assert _Checkup._take_slowest(checkup, alone) is alone and len(taken) == 1  # type: ignore


def test_the_verdicts_place_is_where_its_share_passes_not_that_of_a_smaller_cost():
    """ "The CPU computes 89 %" stood beside the line of an optimizer that took 6 %."""

    def sample(phase, line, count):
        place = {"file": "/w/train.py", "line": line, "function": "main"}
        return {
            "location": place,
            "phase": phase,
            "count": count,
            "leaf_file": "w/train.py",
            "leaf_function": "main",
        }

    made = {"file": "/w/train.py", "line": 28, "function": "main"}
    sgd = {"ident": 0, "cls": "torch.optim.sgd.SGD", "parameters": 200, "supports_fused": True}
    process = {"pid": 1, "optimizers": [{**sgd, "foreach": False, "location": made}]}
    steps = {"mean_s": 0.01, "forward_s": 0.003, "backward_s": 0.0053, "optimizer_s": 0.0006}

    def told(*rows):
        return diagnosis({"steps": steps, "processes": [{**process, "stacks": [*rows]}]})

    found = told(sample("backward", 40, 60), sample("forward", 39, 30), sample("optimizer", 41, 6))
    assert (found.bottleneck, found.detail) == ("cpu", "single-tensor-optimizer")
    place = found.verdict.place
    assert place is not None and place.line == 40
    spread = told(*(sample("forward", line, 20) for line in (31, 32, 33)))
    assert spread.verdict.place is None


def test_mathematics_behind_a_modules_call_is_the_models():
    """Pyro's ELBO, recorded by autograd outside any module, was work outside of the model."""
    place = {"file": "/w/train.py", "line": 12, "function": "elbo"}
    row = {"location": place, "phase": "other", "count": 70, "text": "q = scale * noise"}
    step = {"location": place, "phase": "optimizer", "count": 30}

    def checks(records_graph):
        stacks = [{**row, "records_graph": records_graph}, step]
        steps = {"mean_s": 0.01, "optimizer_s": 0.003, "other_s": 0.007}
        partial = {"steps": steps, "processes": [{"pid": 1, "stacks": stacks}]}
        return [finding.check for finding in diagnosis(partial).findings]

    assert "work-outside-model" in checks(False)
    assert "work-outside-model" not in checks(True)


def test_communication_is_told_as_a_share_of_the_same_step_as_in_the_bar():
    """Profiled steps of 20 ms, real ones of 10 ms: one said 78 %, the other 44 %."""
    gloo = {"step_s": 0.020, "communication_exposed_s": 0.0156, "shares": {"communication": 0.78}}
    phases = {"mean_s": 0.010, "data_wait_s": 0.005, "backward_s": 0.002, "other_s": 0.003}
    partial = {
        "steps": phases,
        "trace": {"path": "t", "steps": 4, **gloo},
        "processes": [{"pid": 1, "world_size": 2}],
    }
    found = {finding.check: finding for finding in diagnosis(partial).findings}
    share = observed(partial).shares.communication
    assert found["communication-share"].share_of_step == pytest.approx(share)
