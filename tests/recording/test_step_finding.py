from __future__ import annotations

import re

from event_sequences import Script

from torchdoctor.observe.events import join_loaders
from torchdoctor.observe.step_finding import (
    NoSteps,
    StepsFound,
    boundary_rows,
    find_boundary,
    tally,
)
from torchdoctor.probe import step_log
from torchdoctor.schema import LoaderFacts, Location, OptimizerFacts, ProcessFacts


def find(script, step_on=None, **facts) -> StepsFound:
    process = ProcessFacts(pid=7, **facts)
    events = join_loaders(script.events(), process)
    found = find_boundary({7: events}, {7: process}, step_on=step_on)
    assert isinstance(found, StepsFound), found
    return found


def iterations(script, found) -> int:
    return len(boundary_rows(script.events(), found.boundary)) - 1


def test_plain_loop():
    script = Script()
    for _ in range(3):
        script.start_loader()
        for _ in range(10):
            script.train_step()
        script.exhaust()
    place = Location(file="/home/me/train.py", line=12)
    found = find(script, loaders=[LoaderFacts(ident=0, location=place)])
    assert (found.boundary.kind, found.boundary.ident, found.boundary.every) == ("loader", 0, 1)
    # 30 batches; the first boundary is the second fetch, the exhausted fetch ends the last.
    assert iterations(script, found) == 29
    assert (found.evidence.fact, found.evidence.location) == ("loader", place)
    assert found.evidence.values["counts"]["batch"] == 30


def test_validation_loader_between_epochs_is_not_the_training_loader():
    script = Script()
    for _ in range(4):
        script.start_loader(0)
        for _ in range(6):
            script.train_step()
        script.exhaust(0)
        script.start_loader(1)
        for _ in range(50):
            script.fetch(1)
            script.forward(grad=False, train=False)
        script.exhaust(1)
    found = find(script)
    assert (found.boundary.kind, found.boundary.ident) == ("loader", 0)
    assert iterations(script, found) == 4 * 6 - 1


def test_evaluation_over_the_training_loader_itself():
    script = Script()
    for _ in range(4):
        script.start_loader(0)
        for _ in range(6):
            script.train_step()
        script.exhaust(0)
        script.start_loader(0)
        for _ in range(6):
            script.fetch(0)
            script.forward(grad=False, train=False)
        script.exhaust(0)
    found = find(script)
    assert iterations(script, found) == 4 * 6 - 1


def test_a_loader_made_anew_in_each_epoch_is_not_said_to_feed_no_step():
    """ "No fetch goes with each step (30 batches fetched)" contradicted itself."""
    script = Script()
    for epoch in range(12):
        script.start_loader(epoch)
        for _ in range(20):
            script.train_step(loader=epoch)
        script.exhaust(epoch)
    loaders = [LoaderFacts(ident=n, batches=20) for n in range(12)]
    found = find(script, loaders=loaders)
    assert found.boundary.kind == "optimizer"
    assert found.evidence.fact == "optimizer-beside-loaders"


def test_two_loaders_zipped_begin_with_the_first():
    script = Script()
    script.start_loader(3)
    script.start_loader(2)
    for _ in range(12):
        script.fetch(3)
        script.fetch(2)
        script.forward()
        script.backward()
        script.optimizer()
    found = find(script)
    assert found.boundary.ident == 3
    assert iterations(script, found) == 10


def test_gan_of_two_optimizers():
    script = Script()
    script.start_loader()
    for batch in range(14):
        script.fetch()
        for _ in range(2):
            script.forward(model=0)
            script.backward()
        script.optimizer(ident=0)
        script.forward(model=1)
        script.backward()
        if batch:
            script.optimizer(ident=1)
    script.exhaust()
    found = find(script)
    assert found.boundary.kind == "loader"
    assert iterations(script, found) == 13


def test_accumulation_counts_batches():
    script = Script()
    script.start_loader()
    for batch in range(96):
        script.fetch()
        script.forward()
        script.backward()
        if batch % 4 == 3:
            script.optimizer()
    found = find(script)
    assert found.boundary.kind == "loader"
    assert iterations(script, found) == 94


def test_trainer_that_fetches_the_batches_of_a_step_ahead():
    script = Script()
    script.start_loader()
    for _ in range(15):
        for _ in range(4):
            script.fetch()
        for _ in range(4):
            script.forward()
            script.backward()
        script.optimizer()
    found = find(script)
    assert found.boundary.kind == "loader"
    assert iterations(script, found) == 13


def test_one_batch_prefetched():
    script = Script()
    script.start_loader()
    script.fetch()
    for batch in range(20):
        script.exhaust() if batch == 19 else script.fetch()
        script.forward()
        script.backward()
        script.optimizer()
    found = find(script)
    assert found.boundary.kind == "loader"
    assert iterations(script, found) == 18


def lbfgs(steps: int, with_loader: bool = False) -> Script:
    script = Script()
    for _ in range(steps):
        if with_loader:
            script.fetch()
        with script.bracket(step_log.OPTIMIZER_BEGIN):
            for _ in range(12):
                script.forward()
                script.backward()
                script.pause(0.5)
    return script


def test_lbfgs_with_few_steps_counts_backwards():
    script = lbfgs(8)
    found = find(script)
    assert found.boundary.kind == "backward"
    assert iterations(script, found) == 8 * 12 - 1


def test_lbfgs_counts_backwards_however_far_it_came():
    assert {find(lbfgs(steps)).boundary.kind for steps in range(1, 40)} == {"backward"}


def test_lbfgs_with_a_loader_counts_batches():
    assert find(lbfgs(8, with_loader=True)).boundary.kind == "loader"


def test_no_loader_takes_the_optimizer():
    script = Script()
    for _ in range(20):
        script.pause(4.0)
        for _ in range(5):  # micro-batches
            script.forward()
            script.backward()
        script.optimizer()
    facts = [OptimizerFacts(ident=0, cls="torch.optim.adamw.AdamW")]
    found = find(script, optimizers=facts)
    assert found.boundary.kind == "optimizer"
    assert iterations(script, found) == 19
    assert found.evidence.values["name"] == "AdamW"


def test_several_optimizers_take_the_slowest_cycling():
    script = Script()
    for _ in range(12):
        for _ in range(5):
            script.forward()
            script.backward()
            script.optimizer(ident=0)
        script.forward(model=1)
        script.backward()
        script.optimizer(ident=1)
    found = find(script)
    assert (found.boundary.kind, found.boundary.ident) == ("optimizer", 1)
    assert iterations(script, found) == 11


def test_layers_trained_one_after_another_count_steps_of_the_last():
    script = Script()
    for layer in range(3):
        for _ in range(30):
            script.backward()
            script.optimizer(ident=layer)
    found = find(script)
    assert (found.boundary.kind, found.boundary.ident) == ("optimizer", 2)


def test_no_optimizer_counts_backwards():
    script = Script()
    for _ in range(60):
        script.forward()
        script.backward()
        script.pause(1.0)
    assert find(script).boundary.kind == "backward"


def test_rollouts_between_updates():
    script = Script()
    for _ in range(6):
        for _ in range(40):
            script.forward(0.2, grad=False)
        for _ in range(16):
            script.forward()
            script.backward()
            script.optimizer()
    found = find(script)
    assert found.boundary.kind == "optimizer"
    assert iterations(script, found) == 95


def test_batch_fetched_once_and_trained_on_for_ever():
    script = Script()
    script.start_loader()
    for _ in range(3):
        script.fetch()
        for _ in range(100):
            script.forward()
            script.backward()
            script.optimizer()
    assert find(script).boundary.kind == "optimizer"


def test_loader_made_anew_each_epoch_is_one_loader():
    script = Script()
    place = Location(file="/home/me/train.py", line=30)
    process = ProcessFacts(
        pid=7, loaders=[LoaderFacts(ident=ident, location=place) for ident in range(3)]
    )
    for epoch, batches in enumerate((40, 15, 20)):
        script.start_loader(epoch)
        for _ in range(batches):
            script.train_step(loader=epoch)
        script.exhaust(epoch)
        events = join_loaders(script.events(), process)
        found = find_boundary({7: events}, {7: process})
        assert isinstance(found, StepsFound)
        assert (found.boundary.kind, found.boundary.ident) == ("loader", 0)
    assert len(boundary_rows(events, found.boundary)) == 75


def test_loaders_that_one_line_makes_for_training_and_evaluation_stay_two():
    script = Script()
    place = Location(file="/home/me/train.py", line=30)
    loaders = [LoaderFacts(ident=ident, location=place) for ident in range(2)]
    for _ in range(3):
        script.start_loader(0)
        for _ in range(20):
            script.train_step(loader=0)
        script.exhaust(0)
        script.start_loader(1)
        for _ in range(10):
            script.fetch(1)
            script.forward(grad=False, train=False)
        script.exhaust(1)
    joined = join_loaders(script.events(), ProcessFacts(pid=7, loaders=loaders))
    assert set(joined.loader[joined.at(step_log.FETCH_BEGIN)].tolist()) == {0, 1}


def test_explicit_steps_overrule_and_step_on_overrules_them():
    script = Script()
    script.start_loader()
    for batch in range(24):
        script.train_step()
        if batch % 3 == 2:
            script.log(step_log.EXPLICIT_STEP, value=24)
    assert find(script).boundary.kind == "explicit"
    for kind in ("loader", "optimizer", "backward"):
        found = find(script, step_on=kind)
        assert found.boundary.kind == kind
        assert found.evidence.values["asked_for"] == kind


def test_step_on_something_that_is_not_there():
    script = Script()
    for _ in range(5):
        script.backward()
    answer = find_boundary({1: script.events()}, {}, step_on="loader")
    assert isinstance(answer, NoSteps)
    assert "'loader'" in answer.reason and "--step-on" in answer.advice
    assert "5 backward" in answer.reason, "what was seen instead"


def test_several_trainers_by_rank_and_without_bystanders():
    def trainer(batches: int, start: float) -> Script:
        script = Script(start)
        script.start_loader()
        for _ in range(batches):
            script.train_step()
        return script

    evaluator = Script(0.0)
    evaluator.backward()
    events = {
        1: evaluator.events(),
        20: trainer(30, 30.0).events(),
        10: trainer(30, 20.0).events(),
        30: trainer(90, 5.0).events(),
    }
    facts = {
        20: ProcessFacts(pid=20, rank=0),
        10: ProcessFacts(pid=10, rank=1),
        30: ProcessFacts(pid=30, is_loader_worker=True),
    }
    found = find_boundary(events, facts)
    assert isinstance(found, StepsFound)
    assert found.trainers == [20, 10]
    assert found.evidence.values["processes"] == 2


def test_inference_is_said():
    script = Script()
    for _ in range(38):
        script.fetch()
        script.forward(grad=False, train=False)
    answer = find_boundary({1: script.events()}, {})
    assert isinstance(answer, StepsFound)
    assert answer.boundary.infers and answer.boundary.kind == "loader"
    assert answer.evidence.values["counts"]["forward"] == 38
    assert answer.evidence.values["learned_by"] == "forward"


def test_a_single_call_is_too_few():
    script = Script()
    script.forward(grad=False, train=False)
    answer = find_boundary({1: script.events()}, {})
    assert isinstance(answer, NoSteps)
    assert "1 forward" in answer.reason


def test_nothing_at_all_is_said():
    assert "no process" in find_boundary({}, {}).reason
    assert "no backward pass" in find_boundary({1: Script().events()}, {}).reason


def test_what_has_not_ended_yet_is_no_empty_list():
    assert tally(Script().events()) and not re.search(r"\d", tally(Script().events()))


def test_one_step_is_too_few():
    script = Script()
    script.train_step()
    answer = find_boundary({1: script.events()}, {})
    assert isinstance(answer, NoSteps)
    assert "complete iterations" in answer.reason


def test_a_slow_first_iteration_does_not_change_what_a_step_is():
    """The first backward may take longer than all that follows: kernels are made, memory is got."""
    script = Script()
    for step in range(13):
        for micro in range(4):
            script.forward()
            script.backward(ms=3000.0 if step == micro == 0 else 3.0)
        script.optimizer()
    found = find(script)
    assert found.boundary.kind == "optimizer"
    assert iterations(script, found) == 12


def test_batches_are_steps_where_the_user_says_so_and_nothing_is_learned():
    script = Script()
    script.start_loader()
    for _ in range(20):
        with script.bracket(step_log.FETCH_BEGIN, 1 << 20, value=140_000, end_value=8):
            script.pause(1.0)
        script.log(step_log.LEARNED, 1 << 20)
        script.forward(grad=False, train=False)
    found = find(script, step_on="loader")
    assert (found.boundary.kind, found.boundary.learned_by) == ("loader", "batch")
    assert iterations(script, found) == 18
