"""Trackers and uploads to a hub: whatever a script asks for, nothing of a launch leaves it.

The packages are small stand-ins with the names and the order of imports of the real ones.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from probed import PROBE, environment, write_plan

PACKAGES = {
    "mlflow/__init__.py": """
        from mlflow.tracking import MlflowClient, set_tracking_uri, set_registry_uri
        """,
    "mlflow/tracking/__init__.py": """
        from mlflow.tracking._tracking_service.utils import set_tracking_uri
        from mlflow.tracking._model_registry.utils import set_registry_uri
        from mlflow.tracking.client import MlflowClient
        """,
    "mlflow/tracking/_tracking_service/__init__.py": "",
    "mlflow/tracking/_tracking_service/utils.py": """
        uri = None
        def set_tracking_uri(address):
            global uri
            uri = address
        """,
    "mlflow/tracking/_model_registry/__init__.py": "",
    "mlflow/tracking/_model_registry/utils.py": """
        uri = None
        def set_registry_uri(address):
            global uri
            uri = address
        """,
    "mlflow/tracking/client.py": """
        from mlflow.tracking._tracking_service import utils
        class MlflowClient:
            def __init__(self, tracking_uri=None, registry_uri=None):
                self.uri = tracking_uri or utils.uri
                self.registry = registry_uri
        """,
    "comet_ml/__init__.py": """
        class Experiment:
            def __init__(self, api_key=None, **settings): raise SystemExit("online")
        ExistingExperiment = Experiment
        class OfflineExperiment:
            def __init__(self, api_key=None, **settings): self.settings = settings
        class ExistingOfflineExperiment(OfflineExperiment): pass
        def start(api_key=None, online=None, **settings): return online
        def login(**settings): raise SystemExit("online")
        """,
    "wandb/__init__.py": "def init(project=None, mode=None): return mode",
    "neptune/__init__.py": "def init_run(project=None, api_token=None, mode=None): return mode",
    "swanlab/__init__.py": "def init(project=None, mode=None): return mode",
    "aim/__init__.py": "from aim.sdk.repo import Repo",
    "aim/sdk/__init__.py": "",
    "aim/sdk/repo.py": """
        class Repo:
            def __init__(self, path, *, read_only=None, init=False): self.path = path
            @classmethod
            def from_path(cls, path, read_only=None, init=False): return cls(path, init=init)
        """,
    "trackio/__init__.py": """
        import os
        def init(project, name=None, group=None, space_id=None, server_url=None, webhook_url=None):
            return [space_id, server_url, webhook_url, os.environ.get("TRACKIO_SPACE_ID")]
        """,
    "huggingface_hub/__init__.py": """
        from huggingface_hub.hf_api import HfApi, create_repo, model_info
        from huggingface_hub.hf_api import upload_file, upload_folder
        """,
    "huggingface_hub/hf_api.py": """
        class RepoUrl(str):
            @property
            def repo_id(self): return "/".join(self.split("/")[-2:])
        class CommitInfo:
            def __init__(self, commit_url, commit_message, commit_description, oid):
                self.commit_url, self.oid = commit_url, oid
        class HfApi:
            def create_repo(self, repo_id, **settings): raise SystemExit("sent")
            def upload_file(self, *, repo_id, **settings): raise SystemExit("sent")
            def upload_folder(self, *, repo_id, run_as_future=False, **settings):
                raise SystemExit("sent")
            def create_branch(self, repo_id, **settings): raise SystemExit("sent")
            def model_info(self, repo_id): return "read"
        api = HfApi()
        create_repo, model_info = api.create_repo, api.model_info
        upload_file, upload_folder = api.upload_file, api.upload_folder
        """,
    "torch/__init__.py": "raise ImportError('no torch is needed here')",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name, source in PACKAGES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return folder


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            """
            from mlflow import MlflowClient, set_tracking_uri, set_registry_uri
            from mlflow.tracking import MlflowClient as same
            set_tracking_uri("http://server"); set_registry_uri("http://server")
            clients = MlflowClient(), same("http://server"), same(tracking_uri="http://server")
            print({x.uri for x in clients} == {ADDRESS}, same(registry_uri="http://server").registry)
            """,
            "True None",
        ),
        (
            """
            from comet_ml import Experiment, ExistingExperiment, start, login
            login(api_key="key")
            print(Experiment(api_key="key", project_name="p").settings, start(online=True))
            print(type(ExistingExperiment()).__name__)
            """,
            "{'project_name': 'p'} False\nExistingOfflineExperiment",
        ),
        (
            """
            from wandb import init
            from neptune import init_run
            import swanlab
            print(init(mode="online"), init("p"), init(mode="disabled"))
            print(init_run("p", "token", "async"), swanlab.init(mode="cloud"))
            """,
            "offline offline disabled\noffline offline",
        ),
        (
            """
            from aim import Repo
            paths = Repo("aim://server:53800").path, Repo.from_path("aim://server:53800").path
            print(set(paths) == {FOLDER + "/aim"}, Repo("here").path)
            """,
            "True here",
        ),
        (
            """
            import os
            os.environ["TRACKIO_SPACE_ID"] = "me/space"
            from trackio import init
            print(init("p", "run", None, "me/space", webhook_url="http://server"))
            """,
            "[None, None, None, None]",
        ),
        (
            """
            from huggingface_hub import HfApi, create_repo, upload_file, upload_folder, model_info
            print(create_repo("me/model", private=True).repo_id, create_repo(repo_id="model"))
            print(upload_file(repo_id="me/model", path_in_repo="a").oid[:4])
            pushed = upload_folder(repo_id="me/data", repo_type="dataset", run_as_future=True)
            print(pushed.done(), pushed.result().commit_url.startswith("https://huggingface.co/data"))
            print(HfApi().create_branch("me/model", branch="b"), model_info("gpt2"))
            """,
            "me/model https://huggingface.co/offline/model\n0000\nTrue True\nNone read",
        ),
    ],
    ids=["mlflow", "comet", "wandb and others", "aim", "trackio", "hub"],
)
def test_nothing_is_sent_whatever_is_imported_by_name(
    packages: Path, tmp_path: Path, source: str, expected: str
) -> None:
    """Names are taken before torch is imported, as Comet demands."""
    folder = tmp_path / "trackers"
    script = tmp_path / "train.py"
    known = f"FOLDER = {str(folder)!r}; ADDRESS = 'file://' + FOLDER + '/mlruns'\n"
    script.write_text(known + textwrap.dedent(source))
    plan = write_plan(tmp_path, trackers=str(folder))
    surroundings = environment(plan, PYTHONPATH=str(packages))
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=surroundings, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert not [path.read_text() for path in (tmp_path / "channel").glob("probe-error-*")]
    assert (ended.stdout.strip(), ended.stderr) == (expected, "")


def test_each_module_that_is_hooked_into_is_waited_for() -> None:
    """`sitecustomize.py` names them itself, so that the files load only where they are needed."""
    code = f"""
import sys
folder = {str(PROBE)!r}
for name in ("sitecustomize", "offline", "network"):
    sys.path.insert(0, folder)  # sitecustomize takes it away
    sys.modules.pop(name, None)
    __import__(name)
hooked = sys.modules["sitecustomize"]._HOOKED
print(sorted(hooked["offline"]) == sorted(sys.modules["offline"]._SWITCHES))
print(sorted(hooked["network"]) == sorted(sys.modules["network"]._HOOKS))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert ended.stdout == "True\nTrue\n", ended.stderr
