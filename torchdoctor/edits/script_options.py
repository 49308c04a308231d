"""The option of the program's own command line that an argument written elsewhere may come from.

`DataLoader(..., num_workers=args.num_workers)` in one file, `parser.add_argument("--num_workers")`
in the script: nothing proves that they are the same, so no source is changed. The command is what
the user can try.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from torchdoctor.edits import KeywordEdit
from torchdoctor.edits.options import command_with, declared

_LAST_OF = re.compile(r"[\w.]+\.(\w+)")  # args.num_workers, self.args.num_workers


def by_option_of_script(edit: KeywordEdit, origin: str) -> list[str]:
    """A comment that names the option, and the command with the new value; [] without one.

    Args:
        origin: what the argument is set to, as source: "args.num_workers".
    """
    found = _LAST_OF.fullmatch(origin)
    if found is None or edit.script is None or edit.script == edit.file:
        return []
    if not any(Path(word).name == Path(edit.script).name for word in edit.command):
        return []  # `bash -c`, `-m package`: what is added at its end may be no argument of it
    try:
        wrapper = MetadataWrapper(cst.parse_module(Path(edit.script).read_bytes()))
    except (OSError, cst.ParserSyntaxError, UnicodeDecodeError):
        return []
    module, places = wrapper.module, wrapper.resolve(PositionProvider)
    option = declared(module, found[1], edit.value)
    command = None if option is None else command_with(module, option, edit)
    if option is None or command is None:
        return []
    where = f"{Path(edit.script).name}:{places[option].start.line}"
    return [
        f"# {edit.keyword} may come from {origin}, for which {where} has an option: try",
        shlex.join(command),
    ]
