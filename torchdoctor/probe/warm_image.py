"""A warm image: the program, held up where `import torch` ends, from where launches are forked.

A launch goes on from there in namespaces made for it. Where launches may differ before (statements
other than imports, the user's own modules, output, threads, open files), there is no image.
"""

import ast
import ctypes
import importlib
import json
import os
import socket
import sys

_LIBRARIES = {"site-packages", "dist-packages"}


def hold_up(plan_text):
    """Fork a launch for each message on the socket; return in the launches alone."""
    plan = json.loads(plan_text)
    link = socket.socket(fileno=plan["image"])  # which whoever waits sees closed after an error
    with open(plan["script"], "rb") as file:
        source = file.read()
    reason = _history(plan["script"], source)
    if reason is None and b"TORCH" not in source:  # which sets no variable that is read there
        importlib.import_module("torch._dynamo")  # as the first optimizer does, for a second
    reason = reason or _open_ends(link.fileno())
    if reason is not None:
        raise RuntimeError("no launch can be forked: " + reason)
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    began = {os.fsdecode(name): os.fsdecode(text) for name, _, text in pairs}
    changed = {name: text for name, text in os.environ.items() if began.get(name) != text}
    link.send(b"ready")
    while True:
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 16)
        if not message:
            os._exit(0)
        child = os.fork()
        if not child:
            link.close()
            try:
                return _become(json.loads(message), changed, *files)
            except OSError:  # the launch was ended before: by itself it must not train
                os._exit(1)
        for number in files:
            os.close(number)
        os.waitpid(child, 0)


def _history(script, source):
    """Return what the program did before that may differ in a launch; None: nothing."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    if frame is None or os.path.realpath(frame.f_code.co_filename) != os.path.realpath(script):
        return "another file than the script imports torch."
    before = [
        statement for statement in ast.parse(source).body if statement.lineno < frame.f_lineno
    ]
    for statement in before:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            return "line %d stands before the import of torch." % statement.lineno
    prefixes = os.path.dirname(os.__file__), os.path.dirname(__file__), frame.f_code.co_filename
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        installed = path.startswith(prefixes) or not _LIBRARIES.isdisjoint(path.split(os.sep))
        if os.path.isabs(path) and not installed:
            return "%s is no package that was installed." % name
    return None


def _open_ends(link):
    """Return what a fork would not take along, or would share; None: nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fstat(1).st_size:
        return "something was printed."
    for path in ("/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")):
        # The listing's own descriptor is closed by now.
        if os.path.lexists(path) and int(os.path.basename(path)) not in (0, 1, 2, link):
            return "%s is open." % os.readlink(path)
    child = os.fork()  # a library that can be forked ends its threads before (OpenBLAS)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return "threads were started." if len(os.listdir("/proc/self/task")) > 1 else None


def _become(launch, changed, status, stdin, output, parent, *spaces):
    """Go on as the program of a launch; its parent tells how it ends, as sandbox_entry.py does."""
    libc = ctypes.CDLL(None)
    inside = None if any(libc.setns(space, 0) for space in spaces) else os.fork()
    if inside:
        os.waitpid(inside, 0)
    if inside != 0:
        os._exit(0)
    # An orphan becomes a child of its namespace's PID 1, which is told its number.
    middle = os.fork()
    if middle:
        os.write(parent, b"%d" % middle)
        os._exit(0)
    os.close(parent)
    program = os.fork()
    if program:
        os.write(status, b'{"event": "started", "program": %d}\n' % program)
        os.write(status, b'{"event": "exit", "status": %d}\n' % os.waitpid(program, 0)[1])
        os._exit(0)
    os.setsid()
    if launch["userns"] and os.geteuid():  # as an exec does: joining it gave every capability
        libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    for number, source in enumerate((stdin, output, output)):
        os.dup2(source, number)
    for number in (status, stdin, output, *spaces):
        os.close(number)
    os.environ.clear()
    os.environ.update({**launch["environment"], **changed})
    os.chdir(launch["cwd"])
