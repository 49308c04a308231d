"""Edits of several fixes made together, in thirty training scripts: whole, in place, in any order.

What `benchmarks/composed_patches.py` observes and runs is parsed here, from recordings made by
hand: lines that a recording names have a mark in the scripts.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_tensors import tensor

from torchdoctor.edits import Edit
from torchdoctor.edits.composing import Composer
from torchdoctor.schema import (
    Boundary,
    Environment,
    Flags,
    LoaderFacts,
    Location,
    ModelFacts,
    OptimizerFacts,
    ProcessFacts,
    Recording,
    StepStatistics,
    TrainingPass,
    Workload,
)
from torchdoctor.schema.program import Binding

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from composed_patches import groups_of, marked_calls, sets_of, with_calls
from training_scripts import Script, scripts

SCRIPTS = list(scripts())
_ABOUT_THE_MODEL = re.compile(r"^( *)((?:self\.)?model)(\.compile\(\)|\.to\(memory_format=.*\))$")


def recording(script: Script, folder: Path) -> Recording:
    path = folder / "train.py"
    path.write_text(script.source)
    functions = [x for x in ast.walk(ast.parse(script.source)) if isinstance(x, ast.FunctionDef)]

    def at(mark: str) -> Location:
        [line] = script.marked(mark)
        around = [x for x in functions if x.lineno <= line <= (x.end_lineno or 0)]
        innermost = max(around, key=lambda x: x.lineno).name if around else "<module>"
        return Location(file=str(path), line=line, function=innermost)

    held = at("holder") if script.marked("holder") else at("forward")
    model = ModelFacts(
        ident=0, cls="__main__.Net", conv2d=1, forwards=24, input_tensors=[[tensor(4, 3, 8, 8)]],
        eval_forwards=8, eval_forwards_with_grad=8,
        eval_with_grad_location=at("eval") if script.marked("eval") else None,
        call=Binding(location=at("forward"), name=script.call),
        holder=Binding(location=held, name=script.holder),
        holder_depth=int(held.function != "<module>"),
    )  # fmt: skip
    loader = LoaderFacts(
        ident=0, location=at("loader"), batch_size=4, dataset_cls="__main__.Images",
        dataset_length=32, batches=16, iterators=2,
        batch_tensors=[[tensor(4, 3, 8, 8), tensor(4, dtype="int64")]],
    )  # fmt: skip
    adam = OptimizerFacts(
        ident=0, cls="torch.optim.adam.Adam", location=at("optimizer"), steps=16,
        supports_fused=True,
    )  # fmt: skip
    passes = TrainingPass(
        model=0, name=script.call, forward=[at("forward")], backward=[at("backward")]
    )
    steps = StepStatistics(
        boundary=Boundary(kind="loader", ident=0), steps=10, warmup_steps=5,
        median_s=0.1, mean_s=0.1, p10_s=0.1, p90_s=0.1,
    )  # fmt: skip
    process = ProcessFacts(
        pid=1, loaders=[loader], optimizers=[adam], models=[model], passes=[passes],
        flags=Flags(backward_location=at("backward"), num_threads=8),
    )  # fmt: skip
    seen = Recording(
        workload=Workload(command=["train.py"], cwd=str(folder), script=str(path)),
        environment=Environment(sandbox="overlay"),
        processes=[process],
        steps=steps,
    )
    return with_calls(seen, marked_calls(script, str(path)))


def sampled(names: Sequence[str], seed: int) -> list[tuple[str, ...]]:
    """Some pairs, some triples, and the set of all: each script gets others."""
    chance = random.Random(seed)
    pairs, triples = sets_of(names, 2), sets_of(names, 3)
    return [*chance.sample(pairs, 6), *chance.sample(triples, 5), tuple(names)]


def text_of(composer: Composer, groups: dict[str, list[Edit]], names: Sequence[str]) -> str:
    composed = composer.compose({name: groups[name] for name in names})
    assert composed.left_out == []
    [(_, after)] = composed.files.values()
    return after


@pytest.mark.parametrize("number", range(len(SCRIPTS)), ids=[x.name for x in SCRIPTS])
def test_sets_of_fixes_are_made_whole_in_any_order(number: int, tmp_path: Path) -> None:
    script = SCRIPTS[number]
    groups = groups_of(recording(script, tmp_path))
    composer = Composer()
    alone = [x for x in sorted(groups) if composer.compose({x: groups[x]}).made]
    assert len(alone) >= 10, sorted(set(groups) - set(alone))
    chance = random.Random(number)
    for chosen in sampled(alone, number):
        text = text_of(composer, groups, chosen)
        shuffled = chance.sample(chosen, len(chosen))
        assert text == text_of(composer, groups, shuffled), chosen
        compile(text, "train.py", "exec")
        comments = re.findall(r"#.*", script.source)
        kept = text if "remove-sync" not in chosen else text + "#wait"
        assert [x for x in comments if x not in kept] == [], "a comment was lost"
        imports = [x for x in text.splitlines() if x.startswith(("import ", "from "))]
        assert len(imports) == len(set(imports))
        assert_bound(text)


def assert_bound(text: str) -> None:
    """Statements about the model stand below what makes it, and in the function that trains."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if (match := _ABOUT_THE_MODEL.match(line)) is None:
            continue
        function = [
            x for x in ast.walk(ast.parse(text))
            if isinstance(x, ast.FunctionDef) and x.lineno <= number + 1 <= (x.end_lineno or 0)
        ]  # fmt: skip
        begin = max((x.lineno for x in function), default=1)
        assert not any(x.name == "evaluate" for x in function)
        made = [x for x in lines[begin - 1 : number] if f"{match[2]} = " in x or "def " in x]
        assert made, line
        assert any("loader" in x or "train(" in x or "epoch" in x for x in lines[number:])


def test_groups_that_contradict_each_other_are_made_in_part_whatever_their_order(
    tmp_path: Path,
) -> None:
    """Of two numbers of workers one is taken: which one does not depend on the order."""
    seen = recording(SCRIPTS[0], tmp_path)
    groups = groups_of(seen)
    two, adam = groups["loader-workers"], groups["fused-optimizer"]
    four = [_with_value(edit, "4") for edit in two]
    wanted = {"a": two, "b": four, "c": adam}
    made = set()
    for order in itertools.permutations(wanted):
        composed = Composer().compose({name: wanted[name] for name in order})
        assert (set(composed.made), composed.left_out) == ({"a", "c"}, ["b"])
        made.update(after for _, after in composed.files.values())
    assert len(made) == 1


def _with_value(edit: Edit, value: str) -> Edit:
    from msgspec.structs import replace

    return replace(edit, value=value)
