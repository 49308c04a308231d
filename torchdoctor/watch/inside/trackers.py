"""Adds what was watched to the run of Weights & Biases or MLflow that the program itself has."""

import atexit

from ...probe import wrapping
from . import layout

_CALLS = {"wandb": ("init", "finish"), "mlflow": ("start_run", "end_run")}


class Trackers:
    """Logs the summary once, right before the tracker's run ends."""

    def __init__(self, watch):
        self._watch = watch

    def install(self, importing):
        """Wait for the trackers to be imported."""
        for name in _CALLS:
            importing.when_imported(name, self._follow)

    def _follow(self, module):
        begin, end = _CALLS[module.__name__]
        log = self._watch.guarded(lambda: self._log(module))

        def make(old):
            def function(*args, **kwargs):
                run = old(*args, **kwargs)
                atexit.register(log)  # called before the tracker's own handler, which ends the run
                return run

            return function

        wrapping.wrap(module, begin, make)
        wrapping.before(self._watch, module, end, lambda *_, **__: log())

    def _log(self, module):
        self._watch.log.settle()
        steps, spent = self._watch.log.totals
        total_s = sum(spent)
        if not steps or not total_s:
            return
        figures = {"torchdoctor/steps": steps, "torchdoctor/step_s": total_s / steps}
        for phase, seconds in zip(layout.PHASES, spent):  # noqa: B905 (Python 3.9)
            figures["torchdoctor/share/" + phase] = seconds / total_s
        if module.__name__ == "mlflow":
            if module.active_run() is not None:
                module.log_metrics(figures)
        elif module.run is not None:
            module.run.summary.update(figures)
