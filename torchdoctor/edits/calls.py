"""What a fix asks to change in a call whose place the recording knows, or of a Trainer."""

from pathlib import Path
from typing import Any

from torchdoctor.edits import DropKeywordEdit, Edit, KeywordEdit, StatementEdit
from torchdoctor.queries.lookup import place, training_loaders
from torchdoctor.schema import LoaderFacts, Location, Recording
from torchdoctor.schema.record_files import parsed_toml

_WITH_WORKERS = ("persistent_workers", "prefetch_factor")  # an error without any
# Arguments that may be given by position, which a keyword would then repeat.
_POSITIONS = {
    "DataLoader": {"batch_size": 1, "num_workers": 5, "pin_memory": 7},
    "init_process_group": {"backend": 0},
    "set_detect_anomaly": {"mode": 0},
    "set_num_threads": {"num_threads": 0},
    "zero_grad": {"set_to_none": 0},
}
# What torch refuses without workers, and where it stands.
_OF_WORKERS = {**dict.fromkeys(_WITH_WORKERS), "timeout": 9, "multiprocessing_context": 11}

_TRAINERS = parsed_toml(Path(__file__).with_name("trainers.toml").read_text(encoding="utf-8"))


def trainer_call(recording: Recording, wanted: dict[str, Any]) -> str | None:
    """Return "TrainingArguments(..., bf16=True)" and the option of the command line; else None.

    `wanted` are "bfloat16", "fused", "compile" or arguments of a DataLoader.
    """
    library = next(
        (each_pass.library for each_pass in recording.main.passes if each_pass.library), ""
    )
    none: dict[str, Any] = {}
    trainer = next(
        (entry for name, entry in _TRAINERS.items() if f"{library}.".startswith(f"{name}.")), none
    )
    trainer = _TRAINERS.get(trainer.get("like", ""), {}) | trainer
    if not wanted or not set(wanted) <= set(trainer):
        return None
    given = [trainer[key].format(value) for key, value in wanted.items()]
    arguments = [argument for argument in given if "=" in argument]
    lines = [f"{trainer['call']}(..., {', '.join(arguments)})"] if arguments else []
    lines += [line for line in given if line not in arguments]
    if "option" in trainer:
        pairs = (argument.replace('"', "").split("=") for argument in arguments)
        lines += [f"# or {trainer['option'].format(*pair)}" for pair in pairs]
    return "\n".join(lines)


def on_top(recording: Recording, *statements: str) -> list[Edit]:
    """Return statements after the imports of the program's script; [] where it is not known."""
    script = recording.workload.script
    return (
        [StatementEdit(file=script, statement=statement) for statement in statements]
        if script
        else []
    )


def loader_call(recording: Recording, **keywords: Any) -> str:
    """Return "train.py:42  DataLoader(..., num_workers=4)", or a Trainer's arguments."""
    keywords.pop("loader", None)  # of a fix's settings: which loader they are for
    asked = trainer_call(recording, keywords)
    if asked is not None:
        return asked
    location = loader_location(recording)
    where = place(recording, location, "the training DataLoader")
    call = f"{where}  DataLoader(..., {written(keywords)}){made_by_library(location)}"
    further = _others_made_there(recording)
    if further and not made_by_library(location):
        call += f"\n# this line makes {further + 1} loaders: the edit changes all of them"
    return call


def made_by_library(location: Location | None) -> str:
    """Return a comment for a call that a library makes; empty if the line itself does."""
    if location is None or location.through is None:
        return ""
    return f"\n# {location.through} makes it, called from this line: look for its option for that"


def _others_made_there(recording: Recording) -> int:
    """Return how many loaders the training loader's line makes besides, as for validation."""
    loaders = training_loaders(recording)
    where = loader_location(recording)
    if where is None:
        return 0
    idents = {loader.ident for loader in loaders} | {_written(recording, loaders[0]).ident}
    same = [loader for loader in recording.main.loaders if loader.location == where]
    return sum(loader.ident not in idents for loader in same)


def _written(recording: Recording, loader: LoaderFacts) -> LoaderFacts:
    """Return the loader of the user's code, from which a library (Accelerate) made this one.

    The loader itself where the user's code made it, or several others may be what it was made of.
    """
    if loader.location is None or loader.location.through is None:
        return loader
    origins = [
        earlier
        for earlier in recording.main.loaders
        if earlier.ident < loader.ident
        and not earlier.batches
        and earlier.location is not None
        and earlier.location.through is None
        and earlier.location != loader.location
        and _may_become(earlier, loader)
    ]
    # One line may make them all, by a function or in a comprehension.
    places = {(earlier.location, earlier.cls) for earlier in origins}
    return origins[0] if len(places) == 1 else loader


def _may_become(earlier: LoaderFacts, loader: LoaderFacts) -> bool:
    """Return True unless something tells two loaders apart."""
    if (earlier.dataset_cls, earlier.dataset_length) != (loader.dataset_cls, loader.dataset_length):
        return False
    for fact in ("batch_size", "shuffles"):
        before = getattr(earlier, fact)
        after = getattr(loader, fact)
        if before is not None and after is not None and before != after:
            return False
    return True


def loader_location(recording: Recording) -> Location | None:
    """Return where the training loader is made."""
    loaders = training_loaders(recording)
    return _written(recording, loaders[0]).location if loaders else None


def loader_edits(recording: Recording, **keywords: Any) -> list[Edit]:
    """Return an edit for each argument of the training loader's call; [] if it is not known."""
    loaders = training_loaders(recording)
    keywords.pop("loader", None)
    if not loaders:
        return []
    callee = _written(recording, loaders[0]).cls.rpartition(".")[2]
    return call_edits(recording, loader_location(recording), callee, keywords)


def without_workers(recording: Recording) -> list[Edit]:
    """Return the edits for num_workers=0, without the arguments that torch refuses beside it."""
    edits = loader_edits(recording, num_workers=0)
    dropped: list[Edit] = [
        DropKeywordEdit(
            file=edit.file,
            line=edit.line,
            callee=edit.callee,
            keyword=name,
            position=position,
            unless="num_workers",
        )
        for edit in edits
        if isinstance(edit, KeywordEdit)
        for name, position in _OF_WORKERS.items()
    ]
    return [*edits, *dropped]


def call_edits(
    recording: Recording, location: Location | None, callee: str, keywords: dict[str, Any]
) -> list[Edit]:
    """Return an edit for each argument of a call; [] if its place is unknown, or in a library."""
    if location is None or location.through is not None:
        return []
    return [
        KeywordEdit(
            file=location.file,
            line=location.line,
            callee=callee,
            keyword=name,
            value=repr(value),
            position=_POSITIONS.get(callee, {}).get(name),
            needs="num_workers" if name in _WITH_WORKERS else None,
            command=tuple(recording.workload.command),
            script=recording.workload.script,
        )
        for name, value in keywords.items()
    ]


def written(keywords: dict[str, Any]) -> str:
    """Return arguments as they stand in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())
