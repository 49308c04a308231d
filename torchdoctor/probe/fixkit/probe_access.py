"""What else of the probe a fix may use, each part loaded when it is asked for."""

import os


class ProbeAccess:
    """Beside the hooks of `Program`: its torch, folder and files_read are meant here."""

    def redirect_reads(self, function):
        """function(path: str) -> the file to read instead of that absolute path, or None."""
        from ..redirect import read_redirect

        read_redirect.add(self, function)

    def shared_folder(self, name):
        """A folder for files that all processes of the launch use; removed with the launch."""
        folder = os.path.join(self.folder, "staged", name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def remote_protocol(self, filesystem):
        """ "s3", "https" of an fsspec file system; None for one whose files are local."""
        from ..hooks import library_reads

        protocol = library_reads.protocol_of(filesystem)
        return None if protocol in library_reads.LOCAL_PROTOCOLS else protocol

    def innermost(self, dataset):
        """The data set within torch's Subset and the like."""
        from ..measure import nested

        return nested.innermost(dataset, self.torch)

    def sample_cache(self, limit_bytes, on_use, on_off):
        """A `SampleCache`: on_use() when it answers, on_off(reason) when it may not."""
        from . import sample_cache

        return sample_cache.SampleCache(self.torch, limit_bytes, on_use, on_off)

    def gradient_scaling(self):
        """A `GradientScaling`: float16 gradients that neither underflow nor show their scale."""
        from . import gradient_scaling

        return gradient_scaling.GradientScaling(self.torch, self)

    def replayed(self, batch):
        """A `Replayed`: a batch that is handed out more than once."""
        from . import replayed

        return replayed.Replayed(self.torch, batch)

    def compile_log(self):
        """A `CompileLog`: what torch.compile says of its own work from here on."""
        from ..hooks import compile_log

        return compile_log.CompileLog(self.torch)

    def read_before(self):
        """Files that the loop of the observed launch read, in that order; [] where none is known.

        Absolute paths; those that only a later launch will read are not among them.
        """
        try:
            with open(self.files_read or "", "rb") as file:
                return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
        except OSError:
            return []
