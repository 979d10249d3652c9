"""Learning curves that other libraries wrote: monitor files of Stable-Baselines3, folders of rl_zoo3, and TensorBoard's
event files, such as those of CleanRL."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.terminal import tell
from headrace.core.types import Json
from headrace.core.writing import check_file
from headrace.evaluation import history
from headrace.evaluation.event_reader import Scalars, read_events
from headrace.evaluation.history import History

SB3, ZOO, CLEANRL = "SB3", "rl_zoo3", "CleanRL"
EPISODES, MEANS = "charts/episodic_return", "rollout/ep_rew_mean"  # tags of CleanRL, and of Stable-Baselines3
PARAMETERS = "hyperparameters/text_summary"
# of CleanRL's hyperparameters: names of the algorithm and the environment, and what does not concern learning
OF_RUN = {"exp_name", "env_id", "seed", "torch_deterministic", "cuda", "track", "capture_video", "save_model"}
OF_RUN |= {"upload_model", "hf_entity", "wandb_project_name", "wandb_entity", "total_timesteps", "num_iterations"}
RUN_NUMBER = re.compile(r"[-_]\d+$")


def read(path: str | Path, metric: str = "") -> History:
    """Read the history of a run of any supported library.

    path: a folder of a run of Headrace; a folder with *monitor.csv, such as one of rl_zoo3, or a single such file; a
    folder with TensorBoard's events, or a single such file. metric: see history.read(); of Headrace's runs alone.

    Raises FileNotFoundError for any other path, ValueError for a run without episodes.
    """
    path = Path(path)
    if (path / "config.toml").exists():
        return history.read(path, metric)
    if metric:
        raise ValueError(f"{path} is no run of Headrace, and {metric!r} is read from these alone")
    files = [path] if path.is_file() else sorted(path.glob("*monitor.csv"))
    if monitors := [file for file in files if file.name.endswith("monitor.csv")]:
        return _of_monitors(path, monitors)
    files = [path] if path.is_file() else sorted(path.glob("*tfevents*"))
    if events := [file for file in files if "tfevents" in file.name]:
        return _of_events(path, events)
    raise FileNotFoundError(
        f"{path} is not a run: it has no monitor.csv (runs are in runs/ALGORITHM/ENV_N), no *.monitor.csv of "
        f"Stable-Baselines3 and no TensorBoard events"
    )


def _of_monitors(path: Path, files: list[Path]) -> History:
    """The episodes of several environments, in the order in which they ended.

    Steps are those of the episodes so far."""
    env, rows = "", list[tuple[float, float, float]]()
    for file in files:
        header, episodes = history.read_monitor(file)
        env = env or str(header.get("env_id") or "")
        began = float(header.get("t_start") or 0.0)
        rows += [(began + seconds, total, length) for total, length, seconds in episodes]
        if header:
            rows.append((began, np.nan, 0.0))
    if not any(length for *_, length in rows):
        raise ValueError(f"{path} has nothing to plot yet: no episode has ended")
    moments, totals, lengths = np.array(sorted(rows)).T
    ended, steps = ~np.isnan(totals), np.cumsum(lengths)
    folder = path if path.is_dir() else path.parent
    library, algorithm, settings = _of_zoo(folder) if path.is_dir() else (SB3, "", {})
    name = algorithm or (RUN_NUMBER.sub("", folder.name) if path.is_dir() else path.name.removesuffix(".monitor.csv"))
    env = "" if env == "None" else env
    seconds = (moments - moments[0])[ended]
    return History(name, env, totals[ended], steps[ended], seconds, settings, library=library)


def _of_zoo(folder: Path) -> tuple[str, str, Json]:
    """The library, the algorithm and the hyperparameters of a folder ALGORITHM/ENV_N of rl_zoo3, which has them in
    ENV/config.yml; for another folder only the library."""
    files = list(folder.glob("*/config.yml"))
    if not files:
        return SB3, "", {}
    return ZOO, folder.resolve().parent.name, _hyperparameters(files[0])


def _hyperparameters(file: Path) -> Json:
    """Read the hyperparameters in a file of rl_zoo3. Python tags in it import and call nothing: their values are read
    as plain ones. Without PyYAML, or for a damaged file, the result is empty and a line says so."""
    try:
        import yaml
    except ImportError:
        tell(f"{file} was not read, so that runs of other settings are one curve: pip install 'headrace[zoo]'")
        return {}

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Reads values below tags of Python as plain ones."""

    def plain(loader: Any, suffix: str, node: Any) -> Any:
        kinds = {yaml.SequenceNode: loader.construct_sequence, yaml.MappingNode: loader.construct_mapping}
        return kinds[type(node)](node, deep=True) if type(node) in kinds else f"{suffix}{node.value}"

    Plain.add_multi_constructor("tag:yaml.org,2002:python/", plain)
    with suppress(yaml.YAMLError, TypeError, ValueError, UnicodeDecodeError):
        found = yaml.load(check_file(file).read_text(), Plain)
        pairs = found[0] if isinstance(found, list) and len(found) == 1 else found  # OrderedDict([[name, value], ...])
        return {str(name): value for name, value in dict(pairs).items() if name != "n_timesteps"}
    tell(f"{file} is damaged, and not read")
    return {}


def _of_events(path: Path, files: list[Path]) -> History:
    """The episodes in CleanRL's events, or the means in Stable-Baselines3's."""
    found = read_events(files)
    tag = next((tag for tag in (EPISODES, MEANS) if tag in found.scalars), None)
    if tag is None:
        known = ", ".join(sorted(found.scalars)) or "nothing"
        raise ValueError(f"{path} has no scalars {EPISODES} or {MEANS}: it has {known}")
    steps, seconds, values = np.array(found.scalars[tag]).T
    folder = path if path.is_dir() else path.parent
    if tag == MEANS:
        return History(RUN_NUMBER.sub("", folder.name), "", values, steps, seconds, library=SB3, averaged=True)
    settings = _parameters(found)
    env, algorithm = (str(settings.get(name, "")) for name in ("env_id", "exp_name"))
    settings = {name: value for name, value in settings.items() if name not in OF_RUN}
    return History(algorithm or folder.name, env, values, steps, seconds, settings, library=CLEANRL)


def _parameters(found: Scalars) -> Json:
    """The rows |name|value| of CleanRL's table of hyperparameters."""
    rows = (line.strip().strip("|").partition("|") for line in found.texts.get(PARAMETERS, "").splitlines()[2:])
    return {name: value for name, bar, value in rows if bar}
