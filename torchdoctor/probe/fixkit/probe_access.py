"""The parts of the probe that a fix may use beside the hooks of `Program`."""

import hashlib
import os

from ..hooks import library_reads
from ..hooks.compile_log import CompileLog
from ..measure import nested
from ..redirect import read_redirect
from .gradient_scaling import GradientScaling
from .replayed import Replayed
from .sample_cache import SampleCache

_KERNELS = ("/proc/", "/sys/", "/dev/", "/run/")


class ProbeAccess:
    """Beside the hooks of `Program`: its torch, folder and files_read are meant here."""

    def redirect_reads(self, function):
        """Ask function(path: str) for the file to read instead of that absolute path, or None."""
        read_redirect.add(self, function)

    def is_below(self, mount):
        """Return a function of an absolute path: True if that file lies below `mount`.

        Links in its folders are resolved; files of the kernel's lie below no mount.
        """
        prefix, known = mount.rstrip(os.sep) + os.sep, {}

        def below(path):
            folder = os.path.dirname(path)
            if folder not in known:
                real = os.path.realpath(folder) + os.sep
                known[folder] = real.startswith(prefix) and not real.startswith(_KERNELS)
            return known[folder]

        return below

    def name_of(self, path, *more):
        """Return a name for the file at `path` in the state that it is in now, and for more values.

        OSError: there is no such file.
        """
        state = os.stat(path)
        # The very file: a link may have moved to another of the same size and the same instant.
        very = (path, state.st_dev, state.st_ino)
        text = repr((very, state.st_size, state.st_mtime_ns, state.st_ctime_ns, more))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]

    def shared_folder(self, name):
        """Return a folder that all processes of the launch share; it is removed with the launch."""
        folder = os.path.join(self.folder, "staged", name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def remote_protocol(self, filesystem):
        """Return "s3", "https" of an fsspec file system; None for one whose files are local."""
        protocol = library_reads.protocol_of(filesystem)
        return None if protocol in library_reads.LOCAL_PROTOCOLS else protocol

    def innermost(self, dataset):
        """Return the data set within torch's Subset and the like."""
        return nested.innermost(dataset, self.torch)

    def sample_cache(self, limit_bytes, on_use, on_off):
        """Return a `SampleCache`: on_use() when it answers, on_off(reason) when it may not."""
        return SampleCache(self.torch, limit_bytes, on_use, on_off)

    def gradient_scaling(self):
        """Return a `GradientScaling`: float16 gradients neither underflow nor show their scale."""
        return GradientScaling(self.torch, self)

    def replayed(self, batch):
        """Return a `Replayed`: a batch that is handed out more than once."""
        return Replayed(self.torch, batch)

    def compile_log(self):
        """Return a `CompileLog`: what torch.compile says of its own work from here on."""
        return CompileLog(self.torch)

    def read_before(self):
        """Return the files that the loop of the observed launch read, in that order; [] if unknown.

        Absolute paths; those that only a later launch will read are not among them.
        """
        try:
            with open(self.files_read or "", "rb") as file:
                return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
        except OSError:
            return []
