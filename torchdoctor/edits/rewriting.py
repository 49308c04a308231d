"""All changes of one module made at once: first those within statements, then whole statements.

The first leave every statement in its block and with its number there. So a change of statements,
which names them by the original's nodes, finds them in the text with the first changes as well.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import libcst as cst

from torchdoctor.edits.arguments import arguments_changed
from torchdoctor.edits.changes import (
    ArgumentAdded,
    ArgumentDropped,
    Around,
    Change,
    ConflictError,
    Inserted,
    Removed,
    Replaced,
    Reshaped,
    TextChange,
    Wrapped,
)
from torchdoctor.edits.syntax import LED, Block, Program

_MARK = "\ufeff"  # of a file's byte order; LibCST drops it
_BEHIND, _BEFORE, _IN_PLACE = range(3)  # of what is written at one offset, in this order
_USUAL = ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_WITHOUT_BLOCKS = (cst.SimpleStatementLine, cst.BaseExpression, cst.Parameters, cst.EmptyLine)


def rewritten(program: Program, changes: Iterable[Change]) -> str:
    """Return the module's text with all changes, which compiles. Their order does not matter.

    Raises:
        ConflictError: two of them want different things of one place.
        SyntaxError: the result is no program.
    """
    distinct = list(dict.fromkeys(changes))
    texts = [change for change in distinct if isinstance(change, TextChange)]
    texts += _of_arguments(program, distinct)
    plans = _plans(distinct)
    code = _with_texts(program.code, texts) if texts else program.code
    if plans:
        tree = cst.parse_module(code) if texts else program.module
        code = _with_plans(program, tree, plans).code
    code = code.removeprefix(_MARK)
    compile(code, "<edited>", "exec")
    return code


def _of_arguments(program: Program, changes: Sequence[Change]) -> list[TextChange]:
    """Return what becomes of the text of each call that gains or loses arguments."""
    added: dict[cst.Call, dict[str, str]] = defaultdict(dict)
    dropped: dict[cst.Call, list[int]] = defaultdict(list)
    for change in changes:
        if isinstance(change, ArgumentAdded):
            if added[change.call].setdefault(change.keyword, change.value) != change.value:
                raise ConflictError(f"{change.keyword} would have two values")
        elif isinstance(change, ArgumentDropped):
            dropped[change.call].append(change.number)
    texts: list[TextChange] = []
    for call in dict.fromkeys((*added, *dropped)):
        given = [f"{name}={value}" for name, value in sorted(added[call].items(), key=_usual)]
        texts += arguments_changed(program, call, given, dropped[call])
    return texts


def _usual(argument: tuple[str, str]) -> tuple[int, str]:
    """Return a sorting key: a loader's arguments as its signature has them, others by name."""
    name, _ = argument
    return (_USUAL.index(name) if name in _USUAL else len(_USUAL)), name


def _with_texts(code: str, changes: Sequence[TextChange]) -> str:
    _refuse_overlaps(changes)
    arounds = [change for change in changes if isinstance(change, Around)]
    outer_first = sorted(arounds, key=_outermost)
    # Offset, kind, order among those of the kind at the offset, up to where it replaces, text.
    pieces: list[tuple[int, int, int, int, str]] = []
    for rank, change in enumerate(outer_first):
        pieces.append((change.start, _BEFORE, rank, change.start, change.before))
        pieces.append((change.end, _BEHIND, -rank, change.end, change.behind))
    pieces += [
        (change.start, _IN_PLACE, 0, change.end, change.text)
        for change in changes
        if isinstance(change, Replaced)
    ]
    written = []
    done = 0
    for start, _, _, end, text in sorted(pieces):
        written += [code[done:start], text]
        done = max(done, end)
    return "".join([*written, code[done:]])


def _outermost(change: Around) -> tuple[int, bool, str, str]:
    """Return a sorting key; a method is chained to what another change makes of the same."""
    return change.start - change.end, bool(change.before), change.before, change.behind


def _refuse_overlaps(changes: Sequence[TextChange]) -> None:
    replaced = sorted(
        {(change.start, change.end) for change in changes if isinstance(change, Replaced)}
    )
    if len(replaced) < sum(isinstance(change, Replaced) for change in changes):
        raise ConflictError("two texts for one place")
    for (_, end), (start, _) in pairwise(replaced):
        if start < end:
            raise ConflictError("the text that two changes replace overlaps")
    for around in changes:
        if isinstance(around, Around):
            for start, end in replaced:
                if start < around.start < end or start < around.end < end:
                    raise ConflictError("what is put around an expression that is replaced")


@dataclass
class _Plan:
    """What changes among the statements of one block, by their numbers."""

    before: dict[int, list[Inserted]] = field(default_factory=lambda: defaultdict(list))
    after: dict[int, list[Inserted]] = field(default_factory=lambda: defaultdict(list))
    reshaped: dict[int, list[Reshaped]] = field(default_factory=lambda: defaultdict(list))
    removed: set[int] = field(default_factory=set)
    wrapped: list[Wrapped] = field(default_factory=list)

    def made(self, body: Sequence[cst.CSTNode]) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
        """Return the statements of the block, and comments that were above its last ones."""
        statements = list(body)
        removed = set(self.removed)
        if len(removed) == len(statements):
            statements[0] = statements[0].with_changes(body=[cst.Pass()])
            removed.remove(0)
        self.removed = removed
        outer_first = sorted(
            self.wrapped, key=lambda wrapped: (wrapped.first, -wrapped.end, wrapped.context)
        )
        for outer, inner in pairwise(outer_first):
            if outer.first < inner.first < outer.end < inner.end:
                raise ConflictError("two `with` statements overlap")
        return self._range(statements, 0, len(statements), outer_first)

    def _range(
        self, body: Sequence[cst.CSTNode], first: int, end: int, wraps: Sequence[Wrapped]
    ) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
        """Return the statements from `first` to `end`, under the contexts that lie within."""
        written: list[cst.CSTNode] = []
        comments: list[cst.EmptyLine] = []
        waiting = list(wraps)
        number = first
        while number < end:
            written += _in_block(self.before[number], written, body[number])
            if waiting and waiting[0].first == number:
                outer = waiting.pop(0)
                within = [wrap for wrap in waiting if wrap.first < outer.end]
                waiting = waiting[len(within) :]
                # What is inserted before the first one stays outside.
                before, self.before[number] = self.before[number], []
                inside, left = self._range(body, outer.first, outer.end, within)
                self.before[number] = before
                if inside:
                    written.append(_led(_under(outer.context, inside), comments))
                    comments = left
                else:
                    comments += left
                number = outer.end
            else:
                written += self._statement(body[number], number, comments)
                written += _set_apart(self.after[number])
                number += 1
        return written, comments

    def _statement(
        self, statement: cst.CSTNode, number: int, comments: list[cst.EmptyLine]
    ) -> list[cst.CSTNode]:
        """Return what stands for one statement; `comments` of removed ones go above it."""
        if number in self.removed:
            if isinstance(statement, LED):
                comments += statement.leading_lines
            return []
        made = [_led(statement, comments)]
        comments.clear()
        for change in sorted(self.reshaped[number], key=lambda reshaped: reshaped.name):
            made[-1:] = change.reshape(made[-1])
        return made


def _plans(changes: Sequence[Change]) -> dict[Block, _Plan]:
    plans: dict[Block, _Plan] = defaultdict(_Plan)
    subjects: dict[str, str] = {}
    for change in changes:
        if isinstance(change, Inserted):
            plan = plans[change.block]
            (plan.after if change.after else plan.before)[change.number].append(change)
            if change.subject and subjects.setdefault(change.subject, change.code) != change.code:
                raise ConflictError(f"{change.subject} would be set to two values")
        elif isinstance(change, Reshaped):
            plans[change.block].reshaped[change.number].append(change)
        elif isinstance(change, Removed):
            plans[change.block].removed.add(change.number)
        elif isinstance(change, Wrapped):
            plans[change.block].wrapped.append(change)
    return plans


def _sorted(inserted: Sequence[Inserted]) -> list[Inserted]:
    """Return statements in the order to write them: imports first, what compiles a model last."""

    def key(change: Inserted) -> tuple[bool, bool, str]:
        imports = change.code.startswith(("import ", "from "))
        return not imports, "compile(" in change.code, change.code

    return sorted(inserted, key=key)


def _set_apart(inserted: Sequence[Inserted]) -> list[cst.CSTNode]:
    """Return statements to stand below another one, with an empty line where one asks for it."""
    made: list[cst.CSTNode] = []
    apart = False
    for change in _sorted(inserted):
        blank, apart = change.blank_above and not apart, apart or change.blank_above
        lines = [cst.EmptyLine(indent=False)] if blank else []
        made.append(change.statement.with_changes(leading_lines=lines))
    return made


def _in_block(
    inserted: Sequence[Inserted], written: Sequence[cst.CSTNode], below: cst.CSTNode
) -> list[cst.CSTNode]:
    """Return statements to stand above one, set apart as that is from what stands above it."""
    made = [change.statement for change in _sorted(inserted)]
    # Comments above the statement stay with it.
    spaced = isinstance(below, LED) and any(
        leading_line.comment is None for leading_line in below.leading_lines
    )
    if made and spaced and written and not isinstance(written[-1], cst.SimpleStatementLine):
        made[0] = made[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return made


def _led(statement: cst.CSTNode, comments: Sequence[cst.EmptyLine]) -> cst.CSTNode:
    if not comments or not isinstance(statement, LED):
        return statement
    return statement.with_changes(leading_lines=[*comments, *statement.leading_lines])


def _under(context: str, inside: Sequence[cst.CSTNode]) -> cst.With:
    head = inside[0]
    lines = head.leading_lines if isinstance(head, LED) else ()
    # What is said above the first statement stays above it all.
    body = [head.with_changes(leading_lines=()) if lines else head, *inside[1:]]
    item = cst.WithItem(item=cst.parse_expression(context))
    block = cst.IndentedBlock([]).with_changes(body=body)
    return cst.With(items=[item], body=block, leading_lines=lines)


class _Blocks(cst.CSTVisitor):
    """The blocks of a tree, the outer before the inner."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Keep a block, and look into what may hold further ones."""
        if isinstance(node, (cst.Module, cst.IndentedBlock)):
            self.blocks.append(node)
        return not isinstance(node, _WITHOUT_BLOCKS)


class _Rewriter(cst.CSTTransformer):
    """Makes the plans of blocks, the inner before the outer."""

    def __init__(self, plans: dict[cst.CSTNode, _Plan]) -> None:
        self._plans = plans

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Look into what may hold blocks."""
        return not isinstance(node, _WITHOUT_BLOCKS)

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Write the statements of a block."""
        plan = self._plans.get(original_node)
        if plan is None:
            return updated_node
        body, left = plan.made(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*left, *updated_node.footer])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        """Write the statements of the module."""
        plan = self._plans.get(original_node)
        if plan is None:
            return updated_node
        body, left = plan.made(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*left, *updated_node.footer])


def _with_plans(program: Program, tree: cst.Module, plans: dict[Block, _Plan]) -> cst.Module:
    inside = _Blocks()
    tree.visit(inside)
    blocks = inside.blocks
    shape = [len(block.body) for block in program.blocks]
    if shape != [len(block.body) for block in blocks]:
        raise ConflictError("a change within a statement has changed the statements")
    there = dict(zip(program.blocks, blocks, strict=True))
    of_tree: dict[cst.CSTNode, _Plan] = {there[block]: plan for block, plan in plans.items()}
    return cst.ensure_type(tree.visit(_Rewriter(of_tree)), cst.Module)
