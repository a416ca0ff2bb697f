"""Uploads a model to the Hugging Face hub. The token comes from the environment or `hf auth login`, never a recipe."""

from __future__ import annotations

import os
from pathlib import Path

from outdo.errors import EngineError, ModelError
from outdo.host import hub_answers
from outdo.models.sources import find_source

LOGIN = "set HF_TOKEN to a token that may write, or run `hf auth login`"


class UploadError(EngineError):
    """The hub did not take the model. It is on the disk as before."""


def why_no_upload() -> str:
    """What stands in the way of any upload from here; empty where nothing is known to."""
    from huggingface_hub import get_token

    if not get_token():
        return f"there is no token for the hub: {LOGIN}"
    return "" if hub_answers() else "the hub cannot be reached from this machine"


def push_model(name: str, repo: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Uploads a model's folder (or a run's, or an adapter) to a repository, which is made where there is none. Returns
    its address. Raises ModelError where there is no such folder, UploadError where the hub does not take it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    source = find_source(name)
    if source.kind not in ("folder", "adapter") or source.path is None:
        raise ModelError(f"{name}: only a run, a model's folder or an adapter can be uploaded; export it first")
    if problem := why_no_upload():
        raise UploadError(f"{source.path} was not uploaded: {problem}")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="outdo")
    try:
        made = api.create_repo(repo, private=private, exist_ok=True)
        if revision:
            api.create_branch(made.repo_id, branch=revision, exist_ok=True)
        message = f"Upload {source.path.name} with outdo"
        api.upload_folder(
            repo_id=made.repo_id, folder_path=source.path, commit_message=message, revision=revision,
            ignore_patterns=[".lock", "state.json", "optimizer.safetensors", "rollouts.jsonl"],  # of a checkpoint
        )  # fmt: skip
    except HFValidationError as error:
        raise ModelError(f"{repo} is no name of a repository (NAME or OWNER/NAME): {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        advice = f"; {LOGIN}" if status in (401, 403) else ""
        raise UploadError(f"{source.path} was not uploaded to {repo}: {_first_line(error)}{advice}") from error
    except Exception as error:  # of its many transports, any
        raise UploadError(f"{source.path} was not uploaded to {repo}: {_first_line(error)}") from error
    return str(made)


def repository_of(hub_model_id: str | None, folder: Path) -> str:
    """The repository that a run uploads to: the one that the recipe names, or the folder's name."""
    return hub_model_id or folder.resolve().name


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
