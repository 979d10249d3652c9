"""Settings that several algorithms share, and the allowed ranges of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from headrace import setting_schedules
from headrace.core.setting_types import fit_fields
from headrace.setting_schedules import Schedule

Settings = TypeVar("Settings")
POLICY_SETTINGS = (
    *("hidden", "activation", "normalize_observation", "images", "recurrent", "rnn_size", "sequence_length", "burn_in"),
)  # fields of an OffPolicyConfig that go to the policy under the same name
MATRIX_STD = 0.05  # initial_std of use_sde's matrix: e^-3, as in Stable-Baselines3's SAC


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings of algorithms that learn from each rollout once. Raises ValueError for one out of range."""

    num_steps: int = 128  # steps of each environment in a rollout
    learning_rate: float = 3e-4  # of Adam, at the start of training
    schedule: Schedule = "constant"  # of the learning rate: constant, linear, cosine, ..., see docs/schedules.md
    schedules: dict[str, Schedule] = field(default_factory=dict)  # of other numbers, such as clip=linear:0.2:0.05
    adam_beta2: float = 0.999  # decay of Adam's mean of squares; 0.99 follows sooner where a solved task fails again
    gamma: float = 0.99  # discount factor
    max_grad_norm: float = 0.5  # gradients are clipped to this norm
    hidden: tuple[int, ...] = (64, 64)  # sizes of the hidden layers
    activation: str = "tanh"  # of the hidden layers, by its name in torch.nn.functional
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """Settings of an actor and a critic that learn from rollouts."""

    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"] = "auto"  # of actions
    normalize_advantage: bool = True  # advantages to mean 0 and variance 1 over each rollout
    normalize_return: bool = True  # the critic predicts normalised returns (PopArt)
    recurrent: Literal["none", "gru", "lstm"] = "none"  # recurrent network between the hidden layers and the outputs
    rnn_size: int = 64  # size of the recurrent network
    sequence_length: int = 0  # steps of gradients through time, a divisor of num_steps; 0: all. PPO can choose it
    critic_hidden: tuple[int, ...] | None = None  # sizes of the critic's hidden layers; None: those of hidden
    critic_members: tuple[str, ...] = ()  # members of a Dict observation that the critic sees, and the actor does not
    ortho_init: bool = True  # orthogonal initial weights; False: those of torch.nn.Linear
    initial_std: float | None = (
        None  # deviation of Box actions at the start, in half their range; None: 1, with use_sde 0.05
    )
    state_std: bool = False  # the deviation of Box actions is an output of the network, a function of the state
    use_sde: bool = False  # noise on Box actions is a function of the state (gSDE, Raffin et al. 2021)
    sde_sample_freq: int = -1  # steps for which use_sde's noise matrix holds, at most an episode; -1: num_steps
    use_expln: bool = False  # deviations of use_sde's matrix that are above 1 grow as a logarithm


@dataclass(frozen=True, kw_only=True)
class ClippedConfig:
    """Settings of PPO's learning from a rollout: epochs of minibatch steps with a clipped objective."""

    epochs: int = 4  # passes over each rollout
    minibatch_size: int = 256  # rows of a minibatch; minibatches have one size, the nearest to this that fits
    gae_lambda: float = 0.95  # of generalised advantage estimation: 0 one-step, 1 returns to the rollout's end
    clip: float = 0.2  # range around 1 in which the probability ratio is not clipped
    value_clip: float = 0.0  # largest change of a value that counts, in standard deviations of returns; 0: off
    entropy_coef: float = 0.0  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    target_kl: float = 0.0  # stop learning from a rollout at a KL divergence of 1.5 times this, in nats; 0: off
    desired_kl: float = 0.01  # of a minibatch, that the learning rate follows with schedule="adaptive", in nats
    layer_norm: bool = False  # layer normalisation before each activation
    shared: bool = False  # actor and critic share their hidden layers


@dataclass(frozen=True, kw_only=True)
class IntrinsicConfig:
    """Settings of a bonus in algorithms that learn from rollouts: see headrace.algorithms.intrinsic."""

    intrinsic: Literal["none", "rnd", "diayn"] = "none"  # rnd: a bonus for new observations; diayn: for telling skills
    intrinsic_coef: float = 1.0  # weight of the bonus' advantages, of diayn of the bonus in the reward
    extrinsic_coef: float | None = None  # of the environment's reward where there is a bonus; None: 2, of diayn 0
    skills: int = 8  # number of skills of diayn, where agent_info is not given
    intrinsic_gamma: float = 0.99  # discount factor of the bonus, whose returns go on over the ends of episodes
    intrinsic_share: float = 0.0  # of rows that the bonus' predictor learns from; 0: those of 32 environments
    intrinsic_hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers of the bonus' networks
    intrinsic_features: int = 128  # outputs of the bonus' networks


@dataclass(frozen=True, kw_only=True)
class VTraceConfig:
    """Settings of V-trace, for rollouts of an earlier policy."""

    clip_rho: float = 1.0  # limit of the importance weight of each TD error, rho-bar in the paper
    clip_c: float = 1.0  # limit of the importance weights of the steps before it, c-bar in the paper; at most clip_rho


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings of algorithms that learn from a replay buffer. Raises ValueError for one out of range."""

    num_steps: int = 1  # steps of each environment in a rollout
    train_freq: int = 0  # steps of each environment from learning to learning, a divisor of num_steps; 0: num_steps
    buffer_size: int = 1_000_000  # steps in the replay buffer, of all environments together
    learning_starts: int = 1_000  # steps of all environments together before learning starts
    batch_size: int = 256  # rows in a gradient step
    utd_ratio: float = 1.0  # gradient steps for each environment step (update-to-data ratio)
    gradient_steps: int = 0  # gradient steps each time it learns; 0: by utd_ratio
    learning_rate: float = 1e-3  # of Adam, at the start of training
    schedule: Schedule = "constant"  # of the learning rate: constant, linear, cosine, ..., see docs/schedules.md
    schedules: dict[str, Schedule] = field(default_factory=dict)  # of other numbers, such as clip=linear:0.2:0.05
    gamma: float = 0.99  # discount factor
    n_steps: int = 1  # steps of an n-step return, before bootstrapping
    hindsight: int = 0  # achieved goals that are learned for each desired one (HER), usually 4; 0: none
    hindsight_goals: Literal["future", "final", "episode"] = "future"  # achieved later, at last, or any of the episode
    hidden: tuple[int, ...] = (256, 256)  # sizes of the hidden layers
    activation: str = "relu"  # of the hidden layers, by its name in torch.nn.functional
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    intrinsic: Literal["none", "rnd", "diayn"] = "none"  # rnd: a bonus for new observations; diayn: for telling skills
    intrinsic_coef: float = 1.0  # weight of the bonus in the reward
    extrinsic_coef: float | None = None  # of the environment's reward where there is a bonus; None: 1, of diayn 0
    skills: int = 8  # number of skills of diayn, where agent_info is not given
    intrinsic_hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers of the bonus' networks
    intrinsic_features: int = 128  # outputs of the bonus' networks
    recurrent: Literal["none", "gru", "lstm"] = "none"  # recurrent network before the hidden layers
    rnn_size: int = 64  # size of the recurrent network
    sequence_length: int = 16  # rows of one environment that a recurrent network learns from together
    burn_in: int = 8  # rows before them that bring the recurrent state up to date

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.train_freq and self.num_steps % self.train_freq:
            raise ValueError(
                f"train_freq is {self.train_freq}: let it divide num_steps, the {self.num_steps} steps of a rollout"
            )
        if self.hindsight:
            others = {"n_steps": 1, "recurrent": "none", "prioritized": False}
            given = [f"{name}={getattr(self, name)!r}" for name, x in others.items() if getattr(self, name, x) != x]
            if given:
                raise ValueError(f"hindsight goes without {', '.join(given)}: leave one of them out")
        if self.intrinsic != "none":
            alone = {"n_steps": 1, "recurrent": "none", "hindsight": 0}
            given = [f"{name}={getattr(self, name)!r}" for name, x in alone.items() if getattr(self, name) != x]
            if given:
                usual = ", ".join(f"{name}={x!r}" for name, x in alone.items())
                raise ValueError(
                    f"intrinsic={self.intrinsic!r} goes without {', '.join(given)}: set {usual} (an environment's "
                    "registered settings may have others), or leave it out"
                )
        if getattr(self, "prioritized", False) and self.recurrent != "none":
            raise ValueError(
                f"prioritized draws single rows, recurrent={self.recurrent!r} learns from sequences: "
                "set prioritized=False (an environment's registered settings may have it), or recurrent='none'"
            )
        if self.sequence_length < 1:
            raise ValueError(f"sequence_length must be 1 or more, got {self.sequence_length}")
        if self.recurrent != "none" and self.batch_size % self.sequence_length:
            raise ValueError(
                f"sequence_length is {self.sequence_length}: let it divide batch_size, the {self.batch_size} rows of "
                "a gradient step"
            )


@dataclass(frozen=True, kw_only=True)
class PrioritizedConfig:
    """Settings of prioritised replay (headrace.data.priorities), of algorithms that learn from a replay buffer."""

    prioritized: bool = False  # prioritised replay: rows are drawn by their TD error
    priority_alpha: float = 0.6  # exponent of priorities: 0 uniform, 1 proportional
    priority_beta: float = 0.4  # exponent of importance sampling weights at the start; 1 at the end


@dataclass(frozen=True, kw_only=True)
class ActorQConfig:
    """Settings of an actor that learns from critics of its actions."""

    critic_hidden: tuple[int, ...] | None = None  # sizes of the critics' hidden layers; None: those of hidden
    noise_autocorrelation: float = 0.0  # of the noise on actions from one step to the next; 0: independent
    critic_init_scale: float = 1.0  # factor of the critics' initial weights; 0.4: as small as PyTorch's own
    norm: Literal["none", "layer", "rms"] = "none"  # normalisation before each activation, of actor and critics
    weight_decay: float = 0.0  # of AdamW: weights shrink by this fraction of the learning rate in a gradient step


@dataclass(frozen=True, kw_only=True)
class AtomsConfig:
    """Settings of critics that learn the distribution of returns, as probabilities of fixed ones: see c51."""

    num_atoms: int = 1  # returns that have a probability, evenly spaced from v_min to v_max; 1: the mean alone
    v_min: float = -10.0  # the lowest return that can be learned, discounted; lower ones count as this
    v_max: float = 10.0  # the highest return that can be learned, discounted; higher ones count as this


@dataclass(frozen=True, kw_only=True)
class DeterministicActorConfig:
    """Settings of a deterministic actor, tanh of its network's output."""

    exploration: float = 0.1  # standard deviation of the noise on actions, in half ranges of them
    exploration_max: float = 0.0  # if above exploration, each episode's deviation is drawn between exploration and this
    invert_gradients: bool = False  # tanh damps the actor's gradients towards the bounds of actions alone


@dataclass(frozen=True, kw_only=True)
class TargetNetworkConfig:
    """Settings of target networks that follow the networks after each update."""

    tau: float = 0.005  # fraction by which target networks move to the networks in an update


@dataclass(frozen=True, kw_only=True)
class EntropyConfig:
    """Settings of algorithms that maximise reward and entropy."""

    temperature: float = 1.0  # weight of the entropy in the reward, at the start
    learn_temperature: bool = True  # so that the entropy approaches target_entropy
    target_entropy: float | None = None  # nats, of actions scaled to [-1, 1]; None: -1 for each dimension


@dataclass(frozen=True, kw_only=True)
class StochasticActorConfig:
    """Settings of the deviation of a stochastic actor's actions, before tanh."""

    initial_std: float | None = None  # at the start, of use_sde's matrix where it is on; None: 1, of the matrix 0.05
    use_sde: bool = False  # noise on actions is a function of the state (gSDE, Raffin et al. 2021)
    sde_sample_freq: int = -1  # steps for which use_sde's matrix holds, at most an episode; -1: until it learns again
    use_expln: bool = False  # deviations of use_sde's matrix that are above 1 grow as a logarithm
    use_sde_at_warmup: bool = False  # actions before learning starts are the policy's too, in place of random ones

    def deviation(self, steps: int) -> dict[str, Any]:
        """Settings of an ActorQ's exploration. steps: of each environment from learning to learning."""
        std = self.initial_std or (MATRIX_STD if self.use_sde else 1.0)
        freq = steps if self.sde_sample_freq == -1 else self.sde_sample_freq
        return {"use_sde": self.use_sde, "sde_sample_freq": freq, "use_expln": self.use_expln, "initial_std": std}


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig:
    """Settings of epsilon-greedy exploration, which an algorithm with noisy networks has in place of their noise."""

    exploration_initial: float = 1.0  # fraction of random actions at the start
    exploration_final: float = 0.05  # fraction of random actions from exploration_fraction on
    exploration_fraction: float = 0.2  # fraction of the training over which it falls

    def exploration_rate(self, progress: Any) -> Any:
        """The fraction of random actions, which falls linearly; 0 with noisy networks, which explore by themselves.
        progress: fraction of the training done. It is a number or a scalar tensor, and so is the result."""
        if getattr(self, "noisy", 0.0):
            return 0.0 * progress
        done = progress / self.exploration_fraction if self.exploration_fraction else 1.0
        done = min(done, 1.0) if isinstance(done, float) else done.clamp(max=1.0)
        return self.exploration_initial + done * (self.exploration_final - self.exploration_initial)


@dataclass(frozen=True, kw_only=True)
class NoisyConfig:
    """Setting of noisy networks (headrace.policies.networks.WeightNoise)."""

    noisy: float = 0.0  # noise on weights in place of random actions, its deviation at the start: usually 0.5; 0: off


Range = tuple[Callable[[float], bool], str]
AT_LEAST_1: Range = (lambda x: x >= 1, "be 1 or more")
AT_LEAST_0: Range = (lambda x: x >= 0, "be 0 or more")
ABOVE_0: Range = (lambda x: x > 0, "be above 0")
FRACTION: Range = (lambda x: 0 <= x <= 1, "lie in [0, 1]")
RANGES: dict[str, Range] = {  # of every setting of this name, in any algorithm
    **dict.fromkeys(("num_steps", "epochs", "minibatch_size", "cg_steps", "backtracks", "critic_epochs"), AT_LEAST_1),
    **dict.fromkeys(("buffer_size", "batch_size", "n_steps", "rnn_size"), AT_LEAST_1),
    **dict.fromkeys(
        ("target_interval", "policy_delay", "critics", "intrinsic_features", "skills", "num_samples"), AT_LEAST_1
    ),
    **dict.fromkeys(("learning_starts", "train_freq", "gradient_steps", "burn_in", "exploration"), AT_LEAST_0),
    **dict.fromkeys(("exploration_fraction", "exploration_spread", "hindsight", "noisy"), AT_LEAST_0),
    **dict.fromkeys(("intrinsic_coef", "alpha", "beta"), AT_LEAST_0),
    **dict.fromkeys(("expectile", "backtrack_coef"), (lambda x: 0 < x < 1, "lie in (0, 1)")),
    "max_weight": ABOVE_0,
    "extrinsic_coef": (lambda x: x is None or x >= 0, "be 0 or more"),
    **dict.fromkeys(("intrinsic_gamma", "intrinsic_share"), FRACTION),
    **dict.fromkeys(("target_noise", "target_noise_clip", "damping", "value_clip", "target_kl"), AT_LEAST_0),
    "renorm_warm_up": AT_LEAST_0,
    **dict.fromkeys(("learning_rate", "max_grad_norm", "clip", "max_kl", "adam_eps", "desired_kl"), ABOVE_0),
    "initial_std": (lambda x: x is None or x > 0, "be above 0"),
    "critic_init_scale": ABOVE_0,
    **dict.fromkeys(("weight_decay", "exploration_max"), AT_LEAST_0),
    "sde_sample_freq": (lambda x: x >= 1 or x == -1, "be 1 or more, or -1 for once a rollout"),
    **dict.fromkeys(("utd_ratio", "temperature", "clip_rho", "clip_c"), ABOVE_0),
    **dict.fromkeys(("gamma", "gae_lambda", "q_lambda", "tau", "priority_alpha", "priority_beta"), FRACTION),
    **dict.fromkeys(("exploration_initial", "exploration_final"), FRACTION),
    **dict.fromkeys(("noise_autocorrelation", "adam_beta2"), (lambda x: 0 <= x < 1, "lie in [0, 1)")),
}


def check_ranges(config: OnPolicyConfig | OffPolicyConfig) -> None:
    """Raise TypeError for a setting of another type, ValueError for one outside its range in RANGES, also at the end of
    its schedule, a sequence_length that does not divide num_steps of a rollout, or a clip_c above clip_rho."""
    fit_fields(config)
    for setting in fields(config):
        check_range(setting.name, getattr(config, setting.name))
    setting_schedules.check(config, check_range)
    if isinstance(config, AtomsConfig):
        if config.num_atoms < 1:
            raise ValueError(f"num_atoms must be 1 or more, got {config.num_atoms}")
        if not config.v_min < config.v_max:
            raise ValueError(f"v_min must be below v_max, got {config.v_min:g} and {config.v_max:g}")
    low, high = (getattr(config, name, 0.0) for name in ("exploration", "exploration_max"))
    if 0 < high <= low:
        raise ValueError(f"exploration_max must be above exploration, {low:g}, or 0 for one deviation, got {high:g}")
    length = config.sequence_length if isinstance(config, ActorCriticConfig) else 0
    if length < 0:
        raise ValueError(f"sequence_length must be 0 or more, got {length}; 0: all steps of a rollout")
    if length and config.num_steps % length:
        steps = config.num_steps
        near = max(steps // length, 1) * length
        raise ValueError(f"sequence_length is {length}: let it divide num_steps, {steps}, as with num_steps={near}")
    if getattr(config, "intrinsic_hidden", None) == ():
        raise ValueError("intrinsic_hidden must have a size or more, got ()")
    if isinstance(config, VTraceConfig) and config.clip_c > config.clip_rho:
        raise ValueError(f"clip_c must be at most clip_rho, {config.clip_rho!r}, got {config.clip_c!r}")


def check_range(name: str, value: Any, where: str = "") -> None:
    """Raise ValueError for a value of a setting outside its range. where: what has it, for the message."""
    is_valid, wanted = RANGES.get(name, (None, ""))
    if is_valid and not is_valid(value):
        raise ValueError(f"{name} must {wanted}, got {value!r}{where}")


def policy_settings(config: OffPolicyConfig) -> dict[str, Any]:
    """The settings of a config for its policy."""
    return {name: getattr(config, name) for name in POLICY_SETTINGS}


def gradient_steps(config: OffPolicyConfig, rows: int) -> int:
    """Gradient steps of an iteration that collects `rows` rows."""
    return config.gradient_steps or max(1, round(config.utd_ratio * rows))


def fits_utd_ratio(config: OffPolicyConfig, rows: int) -> bool:
    """Tell whether gradient_steps() for `rows` rows agrees with utd_ratio within 2 %. True if gradient_steps is set."""
    wanted = config.utd_ratio * rows
    return bool(config.gradient_steps) or abs(gradient_steps(config, rows) - wanted) <= 0.02 * wanted


def narrowed(config: Any, kind: type[Settings]) -> Settings:
    """Make a `kind` of the settings that another algorithm's config has under the same names."""
    return kind(**{x.name: getattr(config, x.name) for x in fields(kind) if hasattr(config, x.name)})  # type: ignore[arg-type]
