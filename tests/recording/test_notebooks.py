"""Notebooks and their exports are launched as they are, without what IPython alone understands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchdoctor.launch.notebooks import converted, is_exported
from torchdoctor.launch.workload import workload_of
from torchdoctor.schema.errors import UsageError

EXPORTED = """#!/usr/bin/env python
# coding: utf-8

# # A title

# In[1]:


get_ipython().system('pip install x')
get_ipython().run_line_magic('matplotlib', 'inline')


# In[ ]:


from __future__ import annotations
def f(x: Unknown): return x
print(f(3), __import__("sys")._getframe().f_lineno)
"""


def notebook(folder: Path, *cells: str, **more: Any) -> Path:
    rows = [{"cell_type": "markdown", "source": ["# Title\n"]}]
    rows += [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]
    path = folder / "notes.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": rows, **more}))
    return path


def printed(path: Path) -> list[str]:
    """Return what the script of a notebook prints."""
    script = converted(path, str(path.parent)).script
    ended = subprocess.run(
        [sys.executable, script], cwd=path.parent, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("\n")[:-1]


def test_cells_run_in_order_with_the_notebook_s_folder_to_import_from(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    cells = (
        "%matplotlib inline\n!pip install something\nx = 1",
        "%%time\nfrom __future__ import annotations\nfrom beside import NAME\nx += 1",
        "%%bash\nexit 1",
        "def f(y: Unknown):\n    return y\nfiles = !ls\n%time x += 1\nf?",
        "text = '''\n%kept\n!kept\n'''\nprint(NAME, x, files, text.split())\ndisplay(x)",
        "print(__name__, '__file__' in globals())",
    )
    assert printed(notebook(tmp_path, *cells)) == [
        "beside 3 None ['%kept', '!kept']",
        "__main__ False",
    ]
    remark = converted(notebook(tmp_path, *cells), str(tmp_path)).remark
    assert remark is not None and remark.values["cells"] == 7
    assert "%matplotlib" in " ".join(remark.values["shown"])


def test_places_are_a_cell_and_a_line(tmp_path: Path) -> None:
    shown = "print(f.__code__.co_filename)\nprint(inspect.getsource(f).strip())"
    path = notebook(tmp_path, "x = 1", f"import inspect\ndef f():\n    return 1\n{shown}")
    name, *source = printed(path)
    assert name.endswith("notes.ipynb#cell3") and source == ["def f():", "    return 1"]


def test_an_exported_script_runs_with_its_own_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "notes.py"
    path.write_text(EXPORTED)
    assert is_exported(path.read_bytes()) and not is_exported(b"print('# In[1]:')\n")
    line = EXPORTED.split("\n").index('print(f(3), __import__("sys")._getframe().f_lineno)') + 1
    assert printed(path) == [f"3 {line}"]
    workload = workload_of(["notes.py", "--lr", "1"], cwd=str(tmp_path))
    assert workload.notebook == "notes.py" and workload.command[2:] == ["--lr", "1"]


@pytest.mark.parametrize(
    ("cells", "more", "said"),
    [
        (["x ="], {}, "cell 2, line 1"),
        (["await f()"], {}, "asyncio.run"),
        ([], {}, "no code"),
        (["x"], {"metadata": {"language_info": {"name": "R"}}}, " r,"),
        (["x"], {"cells": None, "worksheets": []}, "version 4"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_a_sentence(
    tmp_path: Path, cells: list[str], more: dict[str, Any], said: str
) -> None:
    notebook(tmp_path, *cells, **more)
    with pytest.raises(UsageError) as refused:
        workload_of(["notes.ipynb"], cwd=str(tmp_path))
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', '{"cells": [3]}', "\x00"])
def test_a_damaged_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.ipynb").write_text(text)
    with pytest.raises(UsageError):
        workload_of(["notes.ipynb"], cwd=str(tmp_path))


def test_the_command_of_a_notebook_is_told_as_it_was_typed(tmp_path: Path) -> None:
    notebook(tmp_path, "x = 1")
    workload = workload_of(["notes.ipynb", "--hf-token", "hf_abcdef"], cwd=str(tmp_path))
    assert workload.command[1].endswith(".py") and workload.command[3] == "hf_abcdef"
    assert workload.typed[1:] == ["notes.ipynb", "--hf-token", "***"]
