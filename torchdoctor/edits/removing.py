"""Takes a statement away that nobody needs: a call and nothing else, such as a synchronization."""

from torchdoctor.edits import RemoveEdit
from torchdoctor.edits.changes import Changes, Removed
from torchdoctor.edits.syntax import Program, called, last_name


def without_statement(program: Program, edit: RemoveEdit) -> Changes | None:
    """Remove a call that is a statement; `pass` stands in its place if it was alone."""
    place = program.statement_at(edit.line)
    if place is None:
        return None
    block, number = place
    call = called(block.body[number])
    if call is None or last_name(call.func) != edit.callee:
        return None
    return [Removed(block, number)]
