"""Exported policies act as the policies: every kind to every format; what cannot be exported is refused."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.cli.main import main
from headrace.data.flat_dict import FlatDict
from headrace.deploy import comparison as comparisons
from headrace.deploy import exporter
from headrace.deploy.comparison import TOLERANCE, Differences, compare, observations, sample
from headrace.deploy.exporter import TARGETS
from headrace.deploy.numpy_writer import load
from headrace.deploy.policy_graph import describe
from headrace.deploy.readers import READERS, compiled, parts
from headrace.deploy.traced import trace
from headrace.kernels.nn.activation_table import FUNCTIONS
from headrace.policies.actor_q import ActorQ
from headrace.policies.numpy_io import batch_size, pad
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

VECTOR, TWO = hr.Box(-3, 3, (5,)), hr.Discrete(2)
UNEVEN = hr.Box(np.float32([-2, 0]), np.float32([2, 5]))
NESTED = hr.Dict(
    {
        "a": hr.Box(-1, 1, (2, 2)),
        "n": hr.Discrete(4, start=2),
        "t": hr.Tuple([hr.MultiBinary(3), hr.MultiDiscrete([2, 3])]),
    }
)
IMAGE = hr.Box(0, 255, (6, 5), np.uint8)
MASKED = hr.Dict({"observation": VECTOR, "action_mask": hr.MultiBinary(3)})
MASKED_IMAGE = hr.Dict({"action_mask": hr.Box(0, 1, (5,), np.int8), "my image": IMAGE, "more": NESTED})
FLAT = FlatDict({"observation": VECTOR, "action_mask": hr.MultiBinary(3), "goal": hr.Box(-1, 1, (2,))})
ODD_KEYS = hr.Dict({"a b": VECTOR, "a-b": hr.Box(-1, 1, (2,)), "a": hr.Dict({"b": VECTOR, "ä": hr.Discrete(3)})})
SMALL = {"hidden": (8, 6)}
POLICIES = {
    "mlp": lambda: hr.ActorCritic(VECTOR, hr.Discrete(3, start=-1), **SMALL),
    "no_hidden_layer": lambda: hr.ActorCritic(VECTOR, TWO, hidden=()),
    "layer_norm_and_atoms": lambda: ActorQ(VECTOR, UNEVEN, norm="layer", quantiles=5, support=(-2, 3), **SMALL),
    "shared": lambda: hr.ActorCritic(VECTOR, TWO, shared=True, layer_norm=True, **SMALL),
    "multi_discrete": lambda: hr.ActorCritic(VECTOR, hr.MultiDiscrete([2, 3, 4], start=[0, 5, -2]), **SMALL),
    "multi_binary": lambda: hr.ActorCritic(VECTOR, hr.MultiBinary(3), **SMALL),
    "normalized": lambda: hr.ActorCritic(VECTOR, UNEVEN, normalize_observation=True, normalize_return=True, **SMALL),
    "unbounded": lambda: hr.ActorCritic(VECTOR, hr.Box(-np.inf, np.inf, (2,)), **SMALL),
    "whole_numbers": lambda: hr.ActorCritic(VECTOR, hr.Box(0, 9, (2,), np.int64), **SMALL),
    "squashed": lambda: hr.ActorCritic(VECTOR, UNEVEN, distribution="squashed", **SMALL),
    "nested": lambda: hr.ActorCritic(NESTED, TWO, normalize_observation=True, **SMALL),
    "gru": lambda: RecurrentActorCritic(VECTOR, TWO, rnn_size=6, **SMALL),
    "lstm": lambda: RecurrentActorCritic(VECTOR, UNEVEN, "lstm", 6, shared=True, normalize_return=True, **SMALL),
    "q_network": lambda: QNetwork(VECTOR, hr.Discrete(3, start=4), **SMALL),
    "dueling": lambda: QNetwork(VECTOR, hr.Discrete(3), dueling=True, recurrent="lstm", rnn_size=6, **SMALL),
    "sac": lambda: ActorQ(VECTOR, UNEVEN, **SMALL),
    "td3": lambda: ActorQ(VECTOR, UNEVEN, deterministic=True, recurrent="gru", noise_autocorrelation=0.5, **SMALL),
    "tqc": lambda: ActorQ(VECTOR, UNEVEN, quantiles=5, critics=3, critic_hidden=(7,), norm="rms", **SMALL),
    "crossq": lambda: ActorQ(VECTOR, UNEVEN, batch_renorm=0, critic_hidden=(7,), **SMALL),
    "image": lambda: hr.ActorCritic(IMAGE, TWO, **SMALL),
    "channels_last": lambda: hr.ActorCritic(hr.Box(0, 255, (6, 7, 2), np.uint8), TWO, **SMALL),
    "nature": lambda: hr.ActorCritic(hr.Box(0, 255, (36, 36, 1), np.uint8), TWO, images="nature", **SMALL),
    "impala": lambda: hr.ActorCritic(hr.Box(0, 255, (3, 9, 10), np.uint8), TWO, images="impala", **SMALL),
    "odd_keys": lambda: hr.ActorCritic(ODD_KEYS, TWO, **SMALL),
    "float16": lambda: hr.ActorCritic(VECTOR, hr.Box(-1, 1, (2,), np.float16), **SMALL),
    "masked": lambda: hr.ActorCritic(MASKED, hr.Discrete(3, start=2), normalize_observation=True, **SMALL),
    "masked_flat": lambda: hr.ActorCritic(FLAT, hr.MultiDiscrete([1, 2], start=[5, 0]), shared=True, **SMALL),
    "masked_normalized": lambda: hr.ActorCritic(FLAT, hr.Discrete(3), normalize_observation=True, **SMALL),
    "masked_gru": lambda: RecurrentActorCritic(FLAT, hr.Discrete(3), rnn_size=6, **SMALL),
    "masked_lstm": lambda: RecurrentActorCritic(MASKED, hr.MultiDiscrete([1, 2]), "lstm", 6, shared=True, **SMALL),
    "quantiles": lambda: QNetwork(VECTOR, hr.Discrete(3), quantiles=5, **SMALL),
    "masked_q": lambda: QNetwork(MASKED, hr.Discrete(3, start=-1), **SMALL),
    "masked_dueling": lambda: QNetwork(FLAT, hr.Discrete(3), dueling=True, layer_norm=True, **SMALL),
    "masked_image": lambda: hr.ActorCritic(MASKED_IMAGE, hr.MultiDiscrete([2, 3], start=[1, 0]), **SMALL),
    "masked_image_gru": lambda: RecurrentActorCritic(MASKED_IMAGE, hr.Discrete(5), rnn_size=6, **SMALL),
    **{name: lambda name=name: hr.ActorCritic(VECTOR, TWO, activation=name, **SMALL) for name in FUNCTIONS},
}
LARGE = {"nature", "impala"}  # of which a batch of each size is compared
IMAGES = {"image", "channels_last", "masked_image", "masked_image_gru", *LARGE}
CASES = [(name, to) for name in POLICIES for to in TARGETS if to != "c" or name not in IMAGES]


def shaken(name: str):
    """A policy with biases, statistics and output layers that are not at their initial values."""
    policy = POLICIES[name]()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
        for key, buffer in policy.named_buffers():
            if (key.endswith((".center", ".scale")) and "normalizer" in key) or key.endswith((".mean", ".std")):
                buffer += torch.rand(buffer.shape, generator=generator)
    return policy


@pytest.mark.parametrize(("name", "to"), CASES)
def test_an_exported_policy_computes_what_the_policy_does(name, to, tmp_path, monkeypatch):
    policy = shaken(name)
    monkeypatch.setattr(comparisons, "OBSERVATIONS", 200 if name in LARGE else comparisons.OBSERVATIONS)
    graph = describe(policy, value=not isinstance(policy, QNetwork))
    content = TARGETS[to].write(graph, "the_policy")
    if to == "c":
        comparison = compare(policy, graph, compiled(graph, content, "the_policy", tmp_path, "-Werror"))
    else:
        with READERS[to](graph, content, "the_policy") as reader:
            comparison = compare(policy, graph, reader)
    assert comparison.observations >= comparisons.OBSERVATIONS
    assert comparison.ties <= 1  # also those of masks that allow nothing
    assert {"action"} | comparison.differences.keys() == graph.outputs.keys() | {"action"}
    assert name in IMAGES or not comparison.rounding


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("operation", ["dense", "normalize", "gru", "affine"])
def test_a_file_that_computes_something_else_is_an_error_and_is_not_written(operation, to, tmp_path, monkeypatch):
    policy = shaken({"gru": "gru"}.get(operation, "normalized"))
    good = describe(policy)

    def wrong(*_):
        graph = describe(policy)
        node = next(node for node in graph.nodes if node.operation == operation)
        key = next(iter(node.weights))
        node.weights[key] = node.weights[key] * np.float32(1 + 3e-4)
        return graph

    path = tmp_path / f"policy{TARGETS[to].suffix}"
    path.write_text("an earlier export")
    monkeypatch.setattr(exporter, "describe", wrong)
    with pytest.raises(ArithmeticError, match=r"differs from the policy: \w+ is -?[\d.e-]+ where the policy has"):
        hr.export(policy, to, path)
    assert path.read_text() == "an earlier export" and good.nodes


def test_policies_that_differ_in_their_last_bits_are_made_once():
    differences = Differences(shaken("mlp"), describe(shaken("mlp")))
    first, again = list(differences.nudged), list(differences.nudged)
    assert len(first) == 8 and all(a is b for a, b in zip(first, again, strict=True))
    weights = [torch.cat([weight.flatten() for weight in policy.parameters()]) for policy in first]
    own = torch.cat([weight.flatten() for weight in differences.policy.parameters()])
    assert all(0 < (weight / own - 1).abs().nan_to_num().max() <= 2.0**-22 for weight in weights)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(weights, 2))


def test_another_action_is_an_error_unless_the_choices_are_equally_good(monkeypatch):
    policy = shaken("multi_discrete")
    graph = describe(policy)
    with READERS["numpy"](graph, TARGETS["numpy"].write(graph, ""), "") as reader:

        def off_by_one(observation, state):
            outputs = reader(observation, state)
            return outputs | {"action": np.where(outputs["action"] == 6, 5, outputs["action"])}

        with pytest.raises(ArithmeticError, match=r"it acts \[\d, 5, -?\d\] where the policy acts \[\d, 6, -?\d\]"):
            compare(policy, graph, off_by_one)
        with torch.no_grad():  # the second component's logits 0 and 1 alike
            policy.actor_out.weight[3] = policy.actor_out.weight[2]
            policy.actor_out.bias[3] = policy.actor_out.bias[2] + 1e-6
    graph = describe(policy)
    with READERS["numpy"](graph, TARGETS["numpy"].write(graph, ""), "") as reader:
        assert compare(policy, graph, off_by_one).ties > 100


def test_the_python_file_needs_numpy_alone_and_takes_one_or_many(tmp_path):
    policy = shaken("gru")
    observation = sample(VECTOR, policy.encoder, 7, np.random.default_rng(0))
    hr.export(policy, "numpy", tmp_path / "brain.py")
    np.save(tmp_path / "observation.npy", observation)
    program = (
        "import sys, numpy as np; from brain import Policy; p = Policy(); o = np.load('observation.npy')\n"
        "a, s = p.predict(o); b, s = p.predict(o, s); one, t = p.predict(o[0])\n"
        "assert not {'torch', 'headrace', 'gymnasium'} & sys.modules.keys()\n"
        "assert one == a[0] and one.shape == () and t.shape == (1, 6) and s.shape == (7, 6)\n"
        "print(a.tolist(), b.tolist(), a.dtype)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    first, state = policy.predict(observation)
    second, _ = policy.predict(observation, state)
    assert done.stdout.strip() == f"{first.tolist()} {second.tolist()} {first.dtype}"
    with pytest.raises(ValueError, match=r"expected an observation of shape \(5,\) or a batch of them, got \(4,\)"):
        load((tmp_path / "brain.py").read_bytes()).predict(np.zeros(4))


def test_files_say_how_a_vector_of_several_members_is_ordered():
    graph = describe(POLICIES["masked_flat"]())
    for to in ("numpy", "c"):
        assert b"observation (5), goal (2), action_mask (3)" in TARGETS[to].write(graph, "brain")


def test_act_in_c_updates_the_state_in_place(tmp_path):
    import ctypes

    from headrace.deploy.readers import shared_library

    policy = shaken("gru")
    written = hr.export(policy, "c", tmp_path / "brain-2.h").path.read_bytes()
    act = ctypes.CDLL(str(shared_library(written, "brain_2", tmp_path))).act
    observation, state, action = np.ones(5, np.float32), np.zeros(6, np.float32), np.zeros(1, np.float32)
    expected = None
    for _ in range(4):
        act(*(x.ctypes.data_as(ctypes.c_void_p) for x in (observation, state, action)))
        chosen, expected = policy.predict(observation, expected)
        np.testing.assert_allclose(state, expected[0, :6], atol=1e-6)
        assert action == chosen


def test_onnx_has_a_dynamic_batch_and_says_what_its_spaces_are(tmp_path):
    import json

    import onnx

    written = hr.export(shaken("gru"), "onnx", tmp_path / "policy.onnx", value=True)
    model = onnx.load(written.path)
    sizes = {x.name: [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in model.graph.input}
    assert sizes == {"observation": ["N", 5], "state": ["N", 12]}
    assert [x.name for x in model.graph.output] == ["action", "logits", "next_state", "value"]
    assert json.loads(next(p.value for p in model.metadata_props if p.key == "action_space"))["n"] == 2
    assert "logits float32 [N, 2]" in written.interface


class Own(hr.ActorCritic):
    """A policy of a user: with a network that Headrace has not."""

    def __init__(self, *spaces):
        super().__init__(*spaces, hidden=(8,))
        self.actor = torch.nn.Sequential(self.actor, torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU())


class OwnRecurrent(RecurrentActorCritic):
    """A recurrent policy of a user."""

    scale = 1.0


class OwnQ(QNetwork):
    """A Q-network of a user."""

    scale = 1.0


class OwnActorQ(ActorQ):
    """SAC's policy, of a user."""


class Looking(hr.ActorCritic):
    """A network with an operation that ONNX has not."""

    def distribution(self, observation):
        return super().distribution(torch.linalg.matrix_exp(observation.new_zeros(1, 1)) * observation)


class Choosing(hr.ActorCritic):
    """A network that does something else where an observation says so."""

    def distribution(self, observation):
        return super().distribution(observation if observation.sum() == 0 else observation + 1)


OWN = {
    "actor": lambda: Own(VECTOR, TWO),
    "gaussian": lambda: Own(hr.Box(-1, 1, (2, 3)), UNEVEN),
    "multi_discrete": lambda: Own(NESTED, hr.MultiDiscrete([2, 3], start=[1, 0])),
    "image": lambda: Own(IMAGE, hr.MultiBinary(2)),
    "altered": lambda: altered(),
    "masked": lambda: Own(MASKED, hr.Discrete(3, start=2)),
    "masked_image": lambda: Own(MASKED_IMAGE, hr.MultiDiscrete([2, 3], start=[1, 0])),
    "masked_q": lambda: OwnQ(MASKED, hr.Discrete(3), **SMALL),
    "q_network": lambda: OwnQ(VECTOR, hr.Discrete(3), dueling=True, **SMALL),
    "actor_q": lambda: OwnActorQ(VECTOR, UNEVEN, **SMALL),
}


@pytest.mark.parametrize("name", OWN)
def test_torch_exports_what_headrace_has_no_writer_for(name, tmp_path):
    policy = OWN[name]()
    with torch.no_grad():
        for number, weight in enumerate(policy.parameters()):
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    written = hr.export(policy, "onnx", tmp_path / "policy.onnx", value=not isinstance(policy, QNetwork))
    assert written.comparison.observations >= 1000 and written.comparison.ties <= (20 if "masked" in name else 1)
    assert "action" in written.interface and policy.training and not written.comparison.rounding


@pytest.mark.parametrize("name", OWN)
def test_a_traced_model_has_nothing_of_the_number_of_rows_in_it(name, tmp_path):
    import onnx
    import onnxruntime

    policy = OWN[name]()
    content = hr.export(policy, "onnx", tmp_path / "policy.onnx").path.read_bytes()
    assert not {"Expand", "Mod", "Range", "Tile"} & {node.op_type for node in onnx.load_from_string(content).graph.node}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for rows in (1, 15, 16, 17, 63, 64, 65, 128, 200):
        observation = observations(policy, rows, np.random.default_rng(rows))
        given = parts(trace(policy, value=False)[0], observation)
        action = session.run(["action"], given)[0]
        expected = policy.predict(observation)[0]
        assert action.shape == expected.shape and action.dtype == expected.dtype
        assert np.abs(action - expected.astype(np.float64)).max() < 1e-5


class Counting(hr.ActorCritic):
    """A network that depends on how many rows the tracer saw."""

    def distribution(self, observation):
        weight = torch.linspace(0, 1, len(observation)).unsqueeze(1)
        return super().distribution(observation + 0 * weight)


class Sliced(hr.ActorCritic):
    """A policy that pads and cuts batches itself, as Headrace's own do."""

    def most_likely(self, observation, rnn_state):
        rows = batch_size(observation)
        if rows % self.block:
            observation = pad(self.block, observation)[0]
        return self.distribution(observation).mode()[:rows], rnn_state


def test_a_policy_that_counts_rows_in_python_is_refused_and_one_that_pads_is_not(tmp_path):
    with pytest.raises(ArithmeticError, match=r"the shape \(3, 2\) where .* \(1, 2\); .*\(x.shape\[0\], torch.where\)"):
        hr.export(Counting(VECTOR, TWO), "onnx", tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
    assert hr.export(Sliced(MASKED, hr.Discrete(3)), "onnx", tmp_path / "policy.onnx").comparison.observations >= 1000


@pytest.mark.parametrize("wrong", [1, 64, 65, 131])
def test_a_file_is_compared_in_batches_of_four_sizes(wrong):
    policy = shaken("mlp")
    graph = describe(policy)
    with READERS["numpy"](graph, TARGETS["numpy"].write(graph, ""), "") as reader:

        def at_one_size(observation, state):
            outputs = reader(observation, state)
            return outputs | {"logits": outputs["logits"] + (len(observation) == wrong)}

        with pytest.raises(ArithmeticError, match=f"in a batch of {wrong}; nothing was written. Please report it"):
            compare(policy, graph, at_one_size)


def test_what_a_trace_cannot_follow_is_found_by_the_comparison(tmp_path):
    with pytest.raises(ArithmeticError, match="the exported policy differs from the policy"):
        hr.export(Choosing(VECTOR, TWO), "onnx", tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def altered():
    policy = POLICIES["mlp"]()
    policy.actor.register_forward_hook(lambda *_: None)
    return policy


def replaced():
    policy = POLICIES["mlp"]()
    policy.actor = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Bilinear(6, 6, 6))
    return policy


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (lambda: Own(VECTOR, TWO), {}, "a Own cannot be exported by .* use predict(), or export to onnx, which torch"),
        (lambda: OwnRecurrent(VECTOR, TWO), {"to": "onnx"}, "which take .*RecurrentActorCritic.*: use predict()$"),
        (lambda: Looking(VECTOR, TWO), {"to": "onnx"}, "torch.onnx cannot export this Looking: .*; write"),
        (lambda: GroupedPolicy({"red": POLICIES["mlp"]()}, {"red": ["a"]}), {}, "the groups red have a policy each"),
        (altered, {}, "which alone Headrace's own writers export (actor has a hook"),
        (replaced, {}, "a policy with a Bilinear in it cannot be exported"),
        (POLICIES["q_network"], {"value": True}, "a QNetwork has q_values, of which the largest is the value"),
        (POLICIES["image"], {"to": "c"}, "convolutions, which a C header has not: export to onnx or numpy"),
        (lambda: None, {}, "export() takes a policy, got None"),
        (POLICIES["mlp"], {"to": "onxx"}, "unknown format 'onxx'; did you mean 'onnx'"),
        (POLICIES["mlp"], {"output": "policy.bin"}, "a file for numpy ends in .py, got 'policy.bin'"),
        (POLICIES["mlp"], {"output": "nowhere/policy.py"}, "there is no folder nowhere to write policy.py to"),
    ],
)
def test_what_cannot_be_exported_is_refused(policy, options, message):
    expected = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=expected):
        hr.export(policy(), **{"to": "numpy", **options})


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = "--backend torch --num-envs 4 --num-steps 8 --minibatch-size 32 --hidden 8 --progress none"
    assert main(f"train ppo CartPole-v1 --total-steps 64 --log-folder . --final-episodes 0 {small}".split()) == 0
    for expected in ("policy.py", "policy_2.py"):
        capsys.readouterr()
        assert main(["export", "ppo/CartPole-v1_1", "--to", "numpy", "--value"]) == 0
        printed = capsys.readouterr().out
        assert f"wrote {expected}, " in printed and "action int64 [N], logits float32 [N, 2], value" in printed
        assert f"(allowed: {TOLERANCE:g} x max(1, |value|))" in printed
        assert (tmp_path / expected).is_file()
    assert main(["export", "ppo/CartPole-v1_1", "--to", "numpy", "--group", "red"]) == 2
    assert "all agents share one policy, and there is no group 'red'" in capsys.readouterr().err
