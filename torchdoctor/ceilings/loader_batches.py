"""The training loop without its data loader: two batches from memory, over and over.

The two are given back when it is first switched off, and the loader itself is left alone, so that
training goes on with its next batch afterwards. A batch is answered from memory only where
something was learned since the last answer: an evaluation over the same loader, or a loop that
fetches ahead, gets real batches and comes to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.records import Recording

WHOLE = True
REMOVES = "its data loader"

LEAST_SHARE = 0.05  # of the step: the tree's bound for a moderate wait
_BATCHES = 2  # no more than are discarded after a switch, or a block would hold real fetches


def branch(recording: Recording) -> str:
    """The loader's."""
    return "data_loader"


def share(recording: Recording) -> float | None:
    """The wait for batches."""
    steps, found = recording.steps, recording.shares.data_loader
    if found is None and steps is not None and steps.mean_s > 0:
        found = (steps.data_wait_s + steps.loader_start_s) / steps.mean_s
    return found


def settings(recording: Recording) -> dict[str, Any] | None:
    """The training loader's number; None where its wait is no question, or none drives the loop.

    A batch is answered once something was learned from the one before, which must be seen.
    """
    steps = recording.steps
    if steps is None or steps.boundary.kind != "loader" or steps.boundary.learned_by == "batch":
        return None
    if (share(recording) or 0.0) < LEAST_SHARE:
        return None
    return {"loader": steps.boundary.ident}


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Answer fetches of the training loader with the batches that came first."""
    kept: list[tuple[Any, list[tuple[Any, int]]]] = []
    learned = [False]
    answered = [0, 0]  # fetches, and whether the kept batches were given back

    def give_back() -> None:
        """The training has not had them yet: they are its next ones."""
        if not answered[1]:
            answered[1] = 1
            for batch, versions in kept:
                if all(tensor._version == version for tensor, version in versions):
                    program.give_back(settings["loader"], batch)

    def learns() -> None:
        learned[0] = True

    def answer(ident: int) -> tuple[Any] | None:
        if ident != settings["loader"] or len(kept) < _BATCHES or not learned[0]:
            return None
        learned[0] = False
        batch, versions = kept[answered[0] % _BATCHES]
        if any(tensor._version != version for tensor, version in versions):
            program.refuse("The program changes its batches in place.")
        answered[0] += 1
        program.applied()
        return (batch,)

    def keep(ident: int, batch: Any) -> None:
        if ident == settings["loader"] and len(kept) < _BATCHES:
            kept.append((batch, [(tensor, tensor._version) for tensor in _tensors(torch, batch)]))

    program.set_reason("Its loader handed out no batch.")
    program.restore_training()
    program.at_first_batch(lambda: None, give_back)
    program.before_backward(learns)
    program.around_fetch(answer, keep)


def _tensors(torch: Any, value: Any) -> list[Any]:
    """Every tensor of nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(torch, item)]
    return []
