"""The code change of each remedy, written for the library that a script uses."""

from __future__ import annotations

from headrace.diagnose.profile.profile import Role, Site
from headrace.diagnose.verdict.profile_facts import Facts

SB3 = "stable_baselines3"
OMP_THREADS = """\
# in the first lines of the script, before torch and numpy are imported
import os
os.environ["OMP_NUM_THREADS"] = "1"   # workers inherit it
# once the workers have started, the main process may use more threads again: torch.set_num_threads(...)"""
TORCH_THREADS = "torch.set_num_threads(1)   # right after `import torch`; or OMP_NUM_THREADS=1 in the shell"
STRAGGLER = """\
# compare what its environment is given: another map, level or seed? is it the only one that renders, records or logs?
# if it has to be slower, start the next step without waiting for it (asynchronous sampling)"""
READ_ONCE = """\
losses.append(loss.detach())   # instead of loss.item()
mean = torch.stack(losses).mean().item()   # once"""
ALLOCATE_ONCE = """\
buffer = np.empty((steps, envs, *shape), np.float32)   # once
buffer[step] = observations   # not a list"""
LESS_OFTEN = {  # role -> with Stable-Baselines3, and otherwise
    Role.LOGGING: (
        "model.learn(..., log_interval=10)   # and in callbacks: if self.n_calls % 1000 == 0: self.logger.dump(...)",
        "if step % (10 * ...) == 0:   # ten times less often\n    writer.add_scalar(...)   # without flush() each time",
    ),
    Role.SAVING: (
        "CheckpointCallback(save_freq=10 * ..., save_path=...)",
        "if update % (10 * ...) == 0:\n    torch.save(...)",
    ),
    Role.EVALUATION: (
        "EvalCallback(eval_env, eval_freq=10 * ..., n_eval_episodes=...)   # fewer episodes save as much",
        "if step % (10 * ...) == 0:   # ten times less often; or a tenth of the episodes\n    evaluate(...)",
    ),
}


def _for_library(facts: Facts, sb3: str, otherwise: str) -> str:
    return sb3 if facts.uses(SB3) else otherwise


def processes(facts: Facts, envs: int) -> str:
    """Step environments in several processes."""
    return 'if __name__ == "__main__":   # needed: workers import the script\n' + _for_library(
        facts,
        "    from stable_baselines3.common.env_util import make_vec_env\n"
        "    from stable_baselines3.common.vec_env import SubprocVecEnv\n\n"
        f"    env = make_vec_env(..., n_envs={envs}, vec_env_cls=SubprocVecEnv)",
        f'    envs = gymnasium.make_vec(..., num_envs={envs}, vectorization_mode="async")\n'
        f"    # or gymnasium.vector.AsyncVectorEnv([make_env] * {envs})",
    )


def workers(number: int) -> str:
    """Headrace's worker processes."""
    return f"headrace train ... --workers {number}   # or headrace.train(..., workers={number})"


def one_process(facts: Facts) -> str:
    """Step environments without worker processes."""
    if facts.uses("headrace"):
        return "- headrace train ... --workers N\n+ headrace train ..."
    return _for_library(
        facts,
        "- vec_env_cls=SubprocVecEnv\n+ vec_env_cls=DummyVecEnv",
        "- gymnasium.vector.AsyncVectorEnv(...)\n+ gymnasium.vector.SyncVectorEnv(...)",
    )


def more_envs(facts: Facts, envs: int) -> str:
    """Act in several environments at a time."""
    return _for_library(
        facts,
        f"env = make_vec_env(..., n_envs={envs})   # and n_steps (PPO, A2C) smaller by the same factor",
        f"envs = gymnasium.make_vec(..., num_envs={envs})   # actions = policy(observations), all in one call",
    )


def headrace(name: str) -> str:
    """Train a built-in environment, or, where `name` is "", a compiled environment of the user's."""
    if name:
        return f"headrace train ppo {name}"
    return "# see docs/environments.md: a class with State, reset, step, observe\nheadrace train ppo my_env.py:MyEnv"


def less_often(facts: Facts, role: Role) -> str:
    """Log, save or evaluate ten times less often."""
    return _for_library(facts, *LESS_OFTEN[role])


def fused(facts: Facts) -> str:
    """Adam's fused implementation."""
    return _for_library(
        facts,
        f'{_algorithm(facts)}("MlpPolicy", env, policy_kwargs=dict(optimizer_kwargs=dict(fused=True)))',
        "torch.optim.Adam(parameters, lr=..., fused=True)",
    )


def _algorithm(facts: Facts) -> str:
    """The class of Stable-Baselines3 that learns."""
    functions = (site.function.partition(".") for site in facts.profile.training_thread.sites if f"{SB3}/" in site.file)
    return next((owner for owner, _, method in functions if method == "train"), "PPO")


def minibatch(facts: Facts, factor: int) -> str:
    """Fewer, larger updates."""
    rows = factor * (facts.counter("learning_batch") or 0)
    return f"batch_size={rows}   # compare the return after as many steps; a higher learning rate may help"


def device(facts: Facts, name: str) -> str:
    """The device of the network."""
    sb3 = f'{_algorithm(facts)}("MlpPolicy", env, device="{name}")'
    return _for_library(facts, sb3, f'device = torch.device("{name}")')


def instead(site: Site | None, code: str) -> str:
    """The line that was found, if it is known, and the code to write instead."""
    return (f"# found at {site.file}:{site.line}: {site.text}\n" if site else "") + code


def without(site: Site | None, otherwise: str) -> str:
    """Remove a line."""
    return f"- {site.text}   # {site.file}:{site.line}" if site and site.text else f"# {otherwise}"
