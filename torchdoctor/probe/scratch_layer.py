"""What a program wrote lies in a scratch folder: its files stand for those of the real tree.

A path's *upper* is scratch/<absolute path>; a reader gets it where it exists, else the real file.
What was removed has a mark below scratch/.gone, on disk for the program's children, for good: an
upper wins over it, and what a removed folder held stays hidden.
"""

import errno
import os
import shutil
import threading

_MOST_LINKS = 40  # one after the other; a loop of links ends there, as in the kernel
_SYSTEM = ("/dev", "/proc", "/sys")


class Layer:
    """The files that stand for others, over the real tree; `exempt` ones are written directly.

    `with layer:` lets this thread's calls go to the real files: the layer works on itself.
    """

    def __init__(self, scratch, exempt):
        self.scratch = os.path.realpath(scratch)
        self._gone = os.path.join(self.scratch, ".gone")
        folders = [self.scratch, *map(os.path.realpath, exempt), *_SYSTEM]
        self._exempt = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
        # Sockets are bound there by name, in C. (tempfile itself must not be imported yet: it
        # keeps the `os.unlink` that it finds.)
        temporary = os.environ.get("TMPDIR") or "/tmp"
        self._sockets = os.path.join(os.path.realpath(temporary), "pymp-")
        self._busy = threading.local()

    def __enter__(self):
        """Let this thread's calls go to the real files until left."""
        self._busy.depth = getattr(self._busy, "depth", 0) + 1

    def __exit__(self, *_):
        self._busy.depth -= 1

    @property
    def busy(self):
        """Return True while this thread's calls go to the real files."""
        return getattr(self._busy, "depth", 0) > 0

    # Names.

    def name(self, path, follow=False):
        """Return the absolute path, links in its folders (`follow`: and its last part) resolved."""
        text = os.path.abspath(os.path.join(self.lower(os.getcwd()), os.fsdecode(path)))
        folder, last = os.path.split(text)
        name = os.path.join(self._resolve(folder), last) if last else text
        return self._resolve(name) if follow else name

    def _resolve(self, path):
        """Return an absolute path without links, those of the layer and real ones."""
        resolved = os.sep
        left = path.split(os.sep)[::-1]  # parts, the next one last
        links = 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                resolved = os.path.dirname(resolved)
                continue
            below = os.path.join(resolved, part)
            file = below if self.is_exempt(below) else self.for_read(below)
            if links >= _MOST_LINKS or not os.path.islink(file):
                resolved = below
                continue
            links += 1
            target = self.lower(os.readlink(file))
            if os.path.isabs(target):
                resolved = os.sep
            left += target.split(os.sep)[::-1]
        return resolved

    def is_exempt(self, name):
        """Return whether a path is written directly."""
        return (name + os.sep).startswith(self._exempt) or name.startswith(self._sockets)

    def upper(self, name):
        """Return the file of the layer that stands for a path, whether it exists or not."""
        return self.scratch + name

    def lower(self, path):
        """Return the path that an upper stands for; any other path as it is."""
        if path == self.scratch:
            return os.sep
        if path.startswith(self.scratch + os.sep):
            return path[len(self.scratch) :]
        return path

    # What the program sees.

    def is_gone(self, name):
        """Return whether the real file, or a folder around it, was removed."""
        if not os.path.isdir(self._gone):
            return False
        while name and name != os.path.dirname(name):
            if os.path.lexists(self._mark(name)):
                return True
            name = os.path.dirname(name)
        return False

    def exists(self, name):
        """Return whether the program sees anything at a path."""
        return os.path.lexists(self.for_read(name))

    def is_folder(self, name):
        """Return whether the program sees a folder at a path."""
        return os.path.isdir(self.for_read(name))

    def for_read(self, name):
        """Return the file that a reader gets; one that does not exist where none is to be seen."""
        upper = self.upper(name)
        if os.path.lexists(upper) or self.is_gone(name):
            return upper
        return name

    def listing(self, name):
        """Return names in a folder as the program sees it, with the files that stand for them."""
        files = {}
        if os.path.isdir(name) and not self.is_gone(name):
            for entry in os.listdir(name):
                path = os.path.join(name, entry)
                if path != self.scratch and not self.is_gone(path):
                    files[entry] = path
        upper = self.upper(name)
        if os.path.isdir(upper):
            for entry in os.listdir(upper):
                files[entry] = os.path.join(upper, entry)
            if upper == self.scratch:
                files.pop(".gone", None)
        return files

    # What the program changes.

    def for_write(self, name, keep):
        """Return the file that a writer gets, its folder made; `keep`: with its content."""
        upper = self.upper(name)
        self.make_folders(os.path.dirname(name), name)
        if not keep or os.path.lexists(upper) or not self.exists(name):
            return upper
        if os.path.isdir(name) and not os.path.islink(name):
            os.makedirs(upper, exist_ok=True)
        else:
            shutil.copy2(name, upper, follow_symlinks=False)
        return upper

    def make_folders(self, folder, wanted_by):
        """Make the upper of a folder that the program sees."""
        if not self.is_folder(folder):
            self.fail(errno.ENOENT, wanted_by)
        os.makedirs(self.upper(folder), exist_ok=True)

    def copy_tree(self, name):
        """Copy all that the program sees at and below a path into the layer; return its upper."""
        upper = self.for_write(name, keep=True)
        if os.path.isdir(upper) and not os.path.islink(upper):
            for entry in self.listing(name):
                self.copy_tree(os.path.join(name, entry))
        return upper

    def remove(self, name):
        """Hide the real file; what is in the layer was removed by the caller."""
        if not os.path.lexists(name):
            return
        mark = self._mark(name)
        os.makedirs(os.path.dirname(mark), exist_ok=True)
        with open(mark, "wb"):
            pass

    def _mark(self, name):
        return self._gone + name + ".mark"

    @staticmethod
    def fail(number, path):
        """Raise the error of this number as the system does."""
        raise OSError(number, os.strerror(number), os.fspath(path))
