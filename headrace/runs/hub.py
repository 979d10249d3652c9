"""Push and pull policies at the Hugging Face hub: a run's files that `headrace eval`, `play` and hr.load() need."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from headrace.core.packages import installed, require
from headrace.core.types import Json
from headrace.evaluation.playing import Evaluation
from headrace.runs import checkpoint
from headrace.runs.logs import METRICS, MONITOR
from headrace.runs.run import BEST, LAST

MISSING = "the hub needs huggingface_hub: pip install 'headrace[hub]'"
COPIED = ("config.toml", METRICS, MONITOR)  # files of a run that are pushed with its policy
CARD = """---
library_name: headrace
tags: {tags}
{result}---
# {algorithm} on {env}

A policy trained with [Headrace](https://pypi.org/project/headrace/) {version}: {steps:,} environment steps.
The settings are in `config.toml`, the learning curve in `metrics.jsonl`.

    pip install 'headrace[hub]'
    headrace hub pull {repo} my_run
    headrace eval my_run

```python
import headrace as hr

policy = hr.load(hr.pull_from_hub("{repo}"))
action, state = policy.predict(observation)
```
"""


def push_to_hub(
    run: str | Path, repo: str, *, private: bool = False, evaluation: Evaluation | None = None, message: str = ""
) -> str:
    """Push a run's policy (best/, or else last/), settings, curves and a model card to the hub, and return its URL.

    repo: "user/name", which is created if needed. evaluation: of that policy; its mean return goes into the card.
    Without an evaluation, the card has the score of best/ if evaluations chose it (eval_freq). Returns of training
    episodes are not in the card, since the policy explores in them and changes. The optimizer, the replay buffer and
    environment states are not pushed, so no training can resume from it.
    Raises FileNotFoundError for a missing run, ImportError without huggingface_hub, and what the library raises.
    """
    require("huggingface_hub", MISSING)
    from huggingface_hub import HfApi

    api: Any = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        staged = stage(Path(run), Path(folder), repo, evaluation)
        api.create_repo(repo, private=private, exist_ok=True)
        message = message or f"{staged['algorithm']} on {staged['env']}, {staged['steps']:,} steps"
        pushed = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    return str(getattr(pushed, "commit_url", pushed))


def stage(run: Path, folder: Path, repo: str, evaluation: Evaluation | None = None) -> Json:
    """Write the files to push into a folder. Returns facts for the card."""
    from headrace.runs.listing import summary

    about = summary(run)
    _, manifest, weights = checkpoint.read(run, BEST, LAST, state="policy")
    kept = {name: manifest[name] for name in ("score", "steps") if name in manifest}
    checkpoint.save(folder / BEST, {"policy": weights}, policy=manifest["policy"], **kept)
    for name in COPIED:
        if (run / name).exists():
            shutil.copy(run / name, folder / name)
    facts: Json = {"algorithm": about.algorithm, "env": Path(about.env).name, "steps": about.steps, "repo": repo}
    scored = about.best if about.settings.get("eval_freq") else None  # else a mean of training episodes
    score = scored if evaluation is None else evaluation.mean
    result = "" if score is None else _result(facts, score, None if evaluation is None else evaluation.std)
    tags = json.dumps(["reinforcement-learning", facts["algorithm"], facts["env"]])  # JSON is YAML, too
    card = CARD.format(**facts, tags=tags, result=result, version=installed("headrace", otherwise=""))
    (folder / "README.md").write_text(card)
    return facts


def _result(facts: Json, mean: float, std: float | None) -> str:
    """The model card's entry from which the hub lists returns, in YAML."""
    value = f"{mean:.2f}" if std is None else f"{mean:.2f} +/- {std:.2f}"
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    result = {
        "task": task,
        "dataset": {"type": facts["env"], "name": facts["env"]},
        "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": value}],
    }
    index = [{"name": f"{facts['algorithm']} {facts['env']}", "results": [result]}]
    return f"model-index: {json.dumps(index)}\n"  # JSON is YAML, too


def pull_from_hub(repo: str, folder: str | Path | None = None, revision: str | None = None) -> Path:
    """Download a run of push_to_hub() to a folder for hr.load(), `headrace eval` and `headrace play`.

    folder: the target; None for the library's cache. Nothing in it is unpickled. Code in the folder that config.toml
    names is not run without --trust.
    Raises ImportError without huggingface_hub, and what the library raises.
    """
    require("huggingface_hub", MISSING)
    from huggingface_hub import HfApi

    api: Any = HfApi()
    where = api.snapshot_download(repo, local_dir=None if folder is None else str(folder), revision=revision)
    return Path(where)
