"""The changes of code that remedies propose, in the words of the library that a script uses."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Site
from headrace.diagnose.verdict.profile_facts import Facts

SB3 = "stable_baselines3"
OMP_THREADS = """\
# in the first lines of the script, before torch and numpy are imported
import os
os.environ["OMP_NUM_THREADS"] = "1"   # workers inherit it
# after the workers are started, the learner may take its threads back: torch.set_num_threads(...)"""
TORCH_THREADS = "torch.set_num_threads(1)   # right after `import torch`; or OMP_NUM_THREADS=1 in the shell"
STRAGGLER = """\
# compare what its environment is given: another map, level or seed? does only one of them render, record or log?
# if it has to be slower, start the next step without waiting for it (asynchronous sampling)"""


def processes(facts: Facts, envs: int) -> str:
    """Several processes that step environments."""
    if facts.uses(SB3):
        return (
            "from stable_baselines3.common.env_util import make_vec_env\n"
            "from stable_baselines3.common.vec_env import SubprocVecEnv\n\n"
            f'if __name__ == "__main__":   # needed: workers import the script\n'
            f"    env = make_vec_env(..., n_envs={envs}, vec_env_cls=SubprocVecEnv)"
        )
    return (
        'if __name__ == "__main__":   # needed: workers import the script\n'
        f'    envs = gymnasium.make_vec(..., num_envs={envs}, vectorization_mode="async")\n'
        "    # or gymnasium.vector.AsyncVectorEnv([make_env] * " + f"{envs})"
    )


def workers(number: int) -> str:
    """Several of Headrace's own processes."""
    return f"headrace train ... --workers {number}   # or headrace.train(..., workers={number})"


def one_process(facts: Facts) -> str:
    """No processes."""
    if facts.uses("headrace"):
        return "- headrace train ... --workers N\n+ headrace train ..."
    if facts.uses(SB3):
        return "- vec_env_cls=SubprocVecEnv\n+ vec_env_cls=DummyVecEnv"
    return "- gymnasium.vector.AsyncVectorEnv(...)\n+ gymnasium.vector.SyncVectorEnv(...)"


def more_envs(facts: Facts, envs: int) -> str:
    """A policy that acts in several environments at a time."""
    if facts.uses(SB3):
        return f"env = make_vec_env(..., n_envs={envs})   # and n_steps (PPO, A2C) smaller by the same factor"
    return f"envs = gymnasium.make_vec(..., num_envs={envs})   # actions = policy(observations), all in one call"


def headrace(name: str) -> str:
    """The environment as a kernel."""
    if name:
        return f"headrace train ppo {name}"
    return "# see docs/environments.md: a class with State, reset, step, observe\nheadrace train ppo my_env.py:MyEnv"


def logging(facts: Facts) -> str:
    """Fewer rows, fewer flushes."""
    if facts.uses(SB3):
        return (
            "model.learn(..., log_interval=10)   # and in callbacks: if self.n_calls % 1000 == 0: self.logger.dump(...)"
        )
    return (
        "if step % (10 * ...) == 0:   # ten times less often\n    writer.add_scalar(...)   # and no flush() after each"
    )


def saving(facts: Facts) -> str:
    """Fewer checkpoints."""
    if facts.uses(SB3):
        return "CheckpointCallback(save_freq=10 * ..., save_path=...)"
    return "if update % (10 * ...) == 0:\n    torch.save(...)"


def evaluation(facts: Facts) -> str:
    """Fewer evaluations."""
    if facts.uses(SB3):
        return "EvalCallback(eval_env, eval_freq=10 * ..., n_eval_episodes=...)   # fewer episodes save as much"
    return "if step % (10 * ...) == 0:   # ten times less often; or a tenth of the episodes\n    evaluate(...)"


def fused(facts: Facts) -> str:
    """Adam in one call."""
    if facts.uses(SB3):
        return f'{_algorithm(facts)}("MlpPolicy", env, policy_kwargs=dict(optimizer_kwargs=dict(fused=True)))'
    return "torch.optim.Adam(parameters, lr=..., fused=True)"


def _algorithm(facts: Facts) -> str:
    """The class of Stable-Baselines3 that learns."""
    places = (site.function.partition(".") for site in facts.profile.driver.sites if f"{SB3}/" in site.file)
    return next((owner for owner, _, method in places if method == "train"), "PPO")


def minibatch(facts: Facts, factor: int) -> str:
    """Fewer, larger updates."""
    rows = factor * (facts.counter("learning_batch") or 0)
    return f"batch_size={rows}   # compare the return after as many steps; a higher learning rate may be due"


def device(facts: Facts, name: str) -> str:
    """Where the network lies."""
    if facts.uses(SB3):
        return f'{_algorithm(facts)}("MlpPolicy", env, device="{name}")'
    return f'device = torch.device("{name}")'


def copies(site: Site | None) -> str:
    """Results read once, together."""
    found = f"# found at {site.file}:{site.line}: {site.text}\n" if site else ""
    return (
        found
        + "losses.append(loss.detach())   # instead of loss.item()\nmean = torch.stack(losses).mean().item()   # once"
    )


def data(site: Site | None) -> str:
    """Arrays made once."""
    found = f"# found at {site.file}:{site.line}: {site.text}\n" if site else ""
    return (
        found
        + "buffer = np.empty((steps, envs, *shape), np.float32)   # once\nbuffer[step] = observations   # not a list"
    )


def without(site: Site | None, otherwise: str) -> str:
    """A line taken out."""
    return f"- {site.text}   # {site.file}:{site.line}" if site and site.text else f"# {otherwise}"
