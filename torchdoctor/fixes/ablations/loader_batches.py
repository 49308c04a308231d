"""The training loop without its data loader: two batches from memory, over and over.

The two are given back when it is first switched off, and the loader itself is left alone, so that
training goes on with its next batch afterwards. Epochs end after as many batches as ever, so that
what is done between them stays in the step. A batch is answered from memory only where something
was learned since the last answer: an evaluation over the same loader, or a loop that fetches ahead,
gets real batches and comes to its end.
"""

from typing import Any

from torchdoctor.queries.lookup import phase_share, training_loaders
from torchdoctor.schema import AblationSpec, Recording, Settings

_LEAST_SHARE = 0.05  # of the step: the tree's bound for a moderate wait
_BATCHES = 2  # no more than are discarded after a switch, or a block would hold real fetches
_BETWEEN = 0.02  # of the step, spent between epochs: with more, they must end where they do
_FEW = 3  # answers
_MOST_SHAPES = 2  # of batches: those of a whole one, and of the short last one


def share(recording: Recording) -> float | None:
    loader_share = recording.shares.data_loader
    return (
        phase_share(recording, "data_wait_s", "loader_start_s")
        if loader_share is None
        else loader_share
    )


def settings(recording: Recording) -> Settings | None:
    """Return the training loader's number; None if it drives no loop, or nothing shows learning."""
    steps = recording.steps
    if len(training_loaders(recording)) > 1:
        return None  # made anew for each epoch: no batch of one stands for those of the next
    if steps is None or steps.boundary.kind != "loader" or steps.boundary.learned_by == "batch":
        return None
    if (share(recording) or 0.0) < _LEAST_SHARE:
        return None
    between = steps.two_modes or steps.evaluation_s > _BETWEEN * steps.mean_s
    ident = steps.boundary.ident
    loaders = recording.main.loaders
    varies = any(
        len(loader.batch_tensors) > _MOST_SHAPES for loader in loaders if loader.ident == ident
    )
    return {"loader": ident, "epochs_matter": between, "varies": varies}


def apply(torch: Any, settings: Settings, program: Any) -> None:
    batches = _Batches(torch, settings, program)
    program.set_reason("no-batch-handed-out")
    program.restore_training()
    program.at_first_batch(batches.start, batches.give_back)
    program.at("backward", batches.learns)
    program.around_fetch(batches.answer, batches.keep)


class _Batches:
    """The first ones, and whether the next one may be one of them."""

    def __init__(self, torch: Any, settings: Settings, program: Any) -> None:
        self.torch = torch
        self.settings = settings
        self.program = program
        self.kept: list[Any] = []
        self.learned = self.given_back = False
        self.answered = 0
        self.elsewhere = False  # a batch came from elsewhere since the last answer
        self.beside = self.alone = 0  # answers before which one did, and did not

    def start(self) -> None:
        if self.settings.get("varies"):
            self.program.refuse("batch-shapes-vary")
        self.elsewhere = False
        self.beside = 0
        self.alone = 0

    def give_back(self) -> None:
        """Give the batches back: the training has not had them yet."""
        if not self.given_back:
            self.given_back = True
            for batch in self.kept:
                if not batch.is_changed():
                    self.program.give_back(self.settings["loader"], batch.again())

    def learns(self) -> None:
        self.learned = True

    def answer(self, ident: int, left: int | None) -> tuple[Any, ...] | None:
        """Return a batch in place of a fetch, as `Program.around_fetch` asks for."""
        if ident != self.settings["loader"] or not self.learned or len(self.kept) < _BATCHES:
            return None
        if not self.program.usable or not self.torch.is_grad_enabled():
            return None
        if left is None and self.settings.get("epochs_matter"):
            self.program.refuse("epoch-length-unknown")
        if left is not None and left <= 0:
            return ()
        self.learned = False
        self.beside, self.alone = self.beside + self.elsewhere, self.alone + (not self.elsewhere)
        self.elsewhere = False
        if self.beside >= _FEW and self.beside > self.alone:
            self.program.refuse("steps-take-other-batches")
        batch = self.kept[self.answered % _BATCHES]
        if batch.is_changed():
            self.program.refuse("changes-its-batches")
        self.answered += 1
        self.program.applied()
        return (batch.again(),)

    def keep(self, ident: int, batch: Any) -> None:
        self.elsewhere = True
        if ident != self.settings["loader"] or len(self.kept) >= _BATCHES:
            return
        replayed = self.program.replayed(batch)
        if self.kept and replayed.shapes != self.kept[0].shapes:
            longer = replayed.is_longer_than(self.kept[0])
            if longer is None:
                self.program.refuse("batch-shapes-vary")
            if not longer:
                return  # the short last one of an epoch
            self.kept.clear()
        self.kept.append(replayed)


ABLATION = AblationSpec(
    whole=True,
    removes="its data loader",
    branch="data_loader",
    share=share,
    settings=settings,
    apply=apply,
    sentences={
        "batch-shapes-vary": "Its batches have ever other shapes: two of them do not stand for "
        "all.",
        "epoch-length-unknown": "What is done between its epochs takes time, and its loader does "
        "not say how many batches an epoch has.",
        "no-batch-handed-out": "Its loader handed out no batch.",
    },
)
