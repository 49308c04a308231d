"""Code that a report prints is pasted: broken lines must mean the same."""

from __future__ import annotations

import ast

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.wording import permanent_form
from torchdoctor.reports.code_lines import code_lines, is_python
from torchdoctor.reports.terminal import render
from torchdoctor.words import (
    Baseline,
    Diagnosis,
    Environment,
    Recommendation,
    RecommendedFix,
    Report,
    WorkloadRecord,
)


def printed(code: str, width: int = 80) -> str:
    """The code as the report shows it in a terminal, without the margin."""
    fix = RecommendedFix(fix="some-fix", instruction=code, standing="offered")
    report = Report(
        torchdoctor_version="0",
        created="",
        workload=WorkloadRecord(command=["torchdoctor", "diagnose", "t"], cwd="/"),
        environment=Environment(),
        baseline=Baseline(),
        diagnosis=Diagnosis(bottleneck="none", path=[], findings=[], sentence=""),
        recommendation=Recommendation(also_offered=[fix]),
    )
    lines = render(report, width).splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("  1. "))
    end = next(n for n, line in enumerate(lines) if n > begin and line and line[0] != " ")
    return "\n".join(line[5:] for line in lines[begin + 1 : end]).strip("\n")


TEMPLATES = {ident: permanent_form(module) for ident, module in catalogue.fixes().items()}
for ident, module in catalogue.fixes().items():
    if hasattr(module, "advice"):
        TEMPLATES[ident] = module.advice(recording({"trace": {"path": "t", "steps": 4}}))
PYTHON = [ident for ident, code in TEMPLATES.items() if is_python(code)]


@pytest.mark.parametrize("ident", PYTHON)
@pytest.mark.parametrize("width", [60, 80])
def test_the_code_of_each_fix_is_printed_as_what_it_is(ident: str, width: int) -> None:
    """`model.compile()  # in place; or` went on with `mode="reduce-overhead" on a GPU`."""
    code = printed(TEMPLATES[ident], width)
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(TEMPLATES[ident]))
    words = [[w for w in text.split() if w not in ("#", "\\")] for text in (code, TEMPLATES[ident])]
    assert sorted(words[0]) == sorted(words[1])


def test_a_comment_that_is_too_long_stands_above_its_line() -> None:
    code = 'if x:\n    f(x)      # why this is called here, at some length\n    s = "# no remark"'
    assert code_lines(code, 30) == [
        "if x:",
        "    # why this is called here,",
        "    # at some length",
        "    f(x)",
        '    s = "# no remark"',
    ]


@pytest.mark.parametrize(
    "code",
    [
        'call("a text of several words that nobody may break", and_another=[1, 2, 3])',
        "total = first_of_all + second_of_all + third_of_all  # a sum",
        'text = """one line  # not a remark\nand another line, which goes on and on and on"""',
        "x = 1 + \\\n    2  # a remark that has no place above a line that another one goes on in",
        "for name in names: print(name, name, name, name, name, name)",
    ],
)
def test_broken_python_means_the_same(code: str) -> None:
    found = "\n".join(code_lines(code, 40))
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(code))


def test_comments_and_commands_in_a_shell_stay_what_they_are() -> None:
    code = "torchrun --numa-binding=node ... train.py      # torch 2.8 and later, several ranks"
    assert code_lines(code, 50) == [
        "# torch 2.8 and later, several ranks",
        "torchrun --numa-binding=node ... train.py",
    ]
    command = "srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2"
    assert code_lines(command, 40) == [
        "srun --nodes 2 --ntasks-per-node 1 \\",
        "  torchrun --nnodes 2",
    ]
