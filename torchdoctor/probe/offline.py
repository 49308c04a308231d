"""Experiment trackers and uploads to a hub: nothing of a launch reaches real results.

The launch's environment switches trackers offline; this covers scripts that ask for more. Loaded by
path when the first of these modules is imported, before the program can take a name from it:
standard library only. Downloads stay possible, and uploads return what their callers expect.
"""

import functools
import importlib
import inspect
import json
import os
from concurrent.futures import Future

_HUB = "https://huggingface.co"
_COMMIT = "0" * 40
# Methods of HfApi that change something by the first word of their name, but for those that do not.
_CHANGES = frozenset(
    (
        "accept",
        "add",
        "batch",
        "cancel",
        "change",
        "comment",
        "copy",
        "create",
        "delete",
        "disable",
        "duplicate",
        "edit",
        "enable",
        "grant",
        "hide",
        "like",
        "merge",
        "move",
        "pause",
        "permanently",
        "preupload",
        "reject",
        "rename",
        "request",
        "rerun",
        "restart",
        "resume",
        "scale",
        "set",
        "super",
        "suspend",
        "sync",
        "trigger",
        "unlike",
        "update",
        "upload",
    )
)
_ALSO = ("run_job", "run_uv_job")
_REPOSITORIES = ("create_repo", "duplicate_repo", "duplicate_space")
_COMMITS = (
    "create_commit",
    "upload_file",
    "upload_folder",
    "delete_file",
    "delete_files",
    "delete_folder",
)


def install(name, module):
    """Switch what was just imported offline."""
    _SWITCHES[name](module)


def _plan():
    with open(os.environ["TORCHDOCTOR_PLAN"], encoding="utf-8") as file:
        return json.load(file)


def _folder(name):
    """Return a folder that is thrown away with the launch, or that the run keeps."""
    plan = _plan()
    return os.path.join(plan.get("trackers") or os.path.join(plan["channel"], "trackers"), name)


def _replace(owner, name, make):
    """Set owner.name, if there is one, to make(old) under old's name."""
    old = getattr(owner, name, None)
    if old is not None:
        setattr(owner, name, functools.wraps(old)(make(old)))


def _with(owner, name, **fixed):
    """Let owner.name be called with these keyword arguments, whatever the program gives."""

    def make(old):
        parameters = _parameters(old)

        def function(*args, **kwargs):
            given = dict(zip(parameters, args, strict=False))
            return old(*args[len(given) :], **{**given, **kwargs, **fixed})

        return function

    _replace(owner, name, make)


def _parameters(function):
    """Return the names of all positional parameters; none where there are too many kinds."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]


def _nothing(owner, *names):
    for name in names:
        _replace(owner, name, lambda old: lambda *args, **kwargs: None)


def _wandb(module):
    def make(old):
        def init(*args, **kwargs):
            if kwargs.get("mode") != "disabled":
                kwargs["mode"] = "offline"
            return old(*args, **kwargs)

        return init

    _replace(module, "init", make)


def _comet(module):
    os.makedirs(os.environ.get("COMET_OFFLINE_DIRECTORY") or _folder("comet"), exist_ok=True)
    for name, offline in (
        ("Experiment", "OfflineExperiment"),
        ("ExistingExperiment", "ExistingOfflineExperiment"),
    ):
        if hasattr(module, name) and hasattr(module, offline):
            setattr(module, name, getattr(module, offline))
    _with(module, "start", online=False)
    _nothing(module, "login", "init", "init_onprem")  # they ask the server for the key's owner


def _neptune(module):
    for name in ("init_run", "init"):
        _with(module, name, mode="offline")


def _mlflow_address():
    return "file://" + _folder("mlruns")


def _local_address(old):
    return lambda *args, **kwargs: old(_mlflow_address())


def _mlflow(module):
    for name in ("set_tracking_uri", "set_registry_uri"):
        _replace(module, name, _local_address)
        if hasattr(module, name):
            getattr(module, name)(None)


def _mlflow_client(module):
    def make(old):
        def __init__(self, *args, **kwargs):
            kwargs = {name: value for name, value in kwargs.items() if not name.endswith("_uri")}
            old(self, **kwargs)  # those given by position are addresses, too

        return __init__

    for name in ("MlflowClient", "MLflowClient"):
        if name in vars(module):
            _replace(vars(module)[name], "__init__", make)


def _aim(module):
    """Keep a local repository where the program names a server."""

    def local(path):
        return path is not None and str(path).startswith("aim://")

    def make(old):
        def __init__(self, path, *args, **kwargs):
            if local(path):
                path, args, kwargs = _folder("aim"), (), {**kwargs, "init": True}
                os.makedirs(path, exist_ok=True)
            old(self, path, *args, **kwargs)

        return __init__

    def from_path(cls, path, *args, **kwargs):
        if local(path):
            path, args, kwargs = _folder("aim"), (), {**kwargs, "init": True}
            os.makedirs(path, exist_ok=True)
        return old_from_path(cls, path, *args, **kwargs)

    repo = module.Repo
    if "from_path" in vars(repo):
        old_from_path = vars(repo)["from_path"].__func__
        repo.from_path = classmethod(functools.wraps(old_from_path)(from_path))
    _replace(repo, "__init__", make)


def _trackio(module):
    remote = dict.fromkeys(("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url"))

    def make(old):
        parameters = _parameters(old)

        def init(*args, **kwargs):
            for name in remote:
                os.environ.pop("TRACKIO_" + name.upper(), None)
            given = (
                {**dict(zip(parameters, args, strict=False)), **kwargs} if parameters else kwargs
            )
            local = {name: value for name, value in given.items() if name not in remote}
            return old(**local) if parameters else old(*args, **local)

        return init

    _replace(module, "init", make)
    _nothing(module, "sync")


def _hub(module):
    """Replace what changes something on the hub, in the class and in the module's own names."""
    api = module.HfApi
    for name, old in list(vars(api).items()):
        is_change = name.partition("_")[0] in _CHANGES or name in _ALSO
        if not is_change or not inspect.isfunction(old):
            continue
        new = functools.wraps(old)(_no_change(module, name))
        setattr(api, name, new)
        bound = vars(module).get(name)
        if getattr(bound, "__func__", None) is old:
            setattr(module, name, new.__get__(bound.__self__))


def _no_change(module, name):
    """Return what stands in for a method of HfApi: it sends nothing, and returns what it would."""

    def method(self, *args, **kwargs):
        result = None
        if name in _REPOSITORIES:
            to = "to_id" if name.startswith("duplicate") else "repo_id"
            result = _repository(module, kwargs.get(to) or (args or ["none"])[0], kwargs)
        elif name in _COMMITS:
            result = _commit(module, kwargs.get("repo_id", "none"), kwargs)
        if not kwargs.get("run_as_future"):
            return result
        future = Future()
        future.set_result(result)
        return future

    return method


def _address(repo_id, kwargs):
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(kwargs.get("repo_type"), "")
    repo_id = str(repo_id)
    return "%s/%s%s" % (_HUB, kind, repo_id if "/" in repo_id else "offline/" + repo_id)


def _repository(module, repo_id, kwargs):
    return module.RepoUrl(_address(repo_id, kwargs))


def _commit(module, repo_id, kwargs):
    return module.CommitInfo(
        commit_url="%s/commit/%s" % (_address(repo_id, kwargs), _COMMIT),
        commit_message=str(kwargs.get("commit_message") or ""),
        commit_description=str(kwargs.get("commit_description") or ""),
        oid=_COMMIT,
    )


def _data_sets(module):
    """Let data sets not be pushed: what follows an upload would ask the hub for what is there."""

    def make(old):
        def push_to_hub(self, repo_id=None, *args, **kwargs):
            hf_api = importlib.import_module("huggingface_hub.hf_api")
            return _commit(hf_api, repo_id, {**kwargs, "repo_type": "dataset"})

        return push_to_hub

    for name in ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"):
        if name in vars(module) and "push_to_hub" in vars(vars(module)[name]):
            _replace(vars(module)[name], "push_to_hub", make)


_SWITCHES = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    "mlflow.tracking._tracking_service.utils": lambda module: _replace(
        module, "set_tracking_uri", _local_address
    ),
    "mlflow.tracking._model_registry.utils": lambda module: _replace(
        module, "set_registry_uri", _local_address
    ),
    "mlflow.tracking.client": _mlflow_client,
    "comet_ml": _comet,
    "neptune": lambda module: [
        _with(module, name, mode="offline") for name in ("init_run", "init")
    ],
    "clearml": lambda module: module.Task.set_offline(offline_mode=True),
    "swanlab": lambda module: _with(module, "init", mode="offline"),
    "aim.sdk.repo": _aim,
    "trackio": _trackio,
    "huggingface_hub.hf_api": _hub,
    "huggingface_hub.repocard": lambda module: _nothing(module.RepoCard, "validate"),
    "huggingface_hub.repository": lambda module: _nothing(
        module.Repository, "git_push", "push_to_hub"
    ),
    "datasets.arrow_dataset": _data_sets,
    "datasets.dataset_dict": _data_sets,
    "datasets.iterable_dataset": _data_sets,
}
