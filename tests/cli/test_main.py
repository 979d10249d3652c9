"""The command line: fast help, errors in one line, precedence of settings, and every verb on a tiny run."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import forked

import headrace as hr
from headrace import envs
from headrace.cli.main import VERBS, main
from headrace.runs import checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--num-envs", "8", "--num-steps", "32", "--hidden", "8", "--progress", "plain", "--target-return", "None"]


BLIND = """
import gymnasium
class Blind(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}
"""


def command(text: str, *more: str) -> int:
    return main([*text.split(), *map(str, more)])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A tiny run of CartPole, trained by the command line."""
    folder = tmp_path_factory.mktemp("runs")
    assert command("train ppo CartPole-v1 --total-steps 2000 --final-episodes 2 --log-folder", folder, *SMALL) == 0
    return folder / "ppo" / "CartPole-v1_1"


@pytest.fixture
def trained(monkeypatch) -> list[tuple[tuple, dict]]:
    """The arguments of train(), which does not run."""
    calls: list[tuple[tuple, dict]] = []

    def note(*args, each, make, **options):
        calls.append((args, options))
        return SimpleNamespace(interrupted=True)

    monkeypatch.setattr("headrace.cli.train.train", note)
    return calls


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_fast_and_loads_nothing_heavy():
    program = (
        "import sys; from headrace.cli.main import main; main(['--help']);"
        "print([m for m in ('torch', 'numpy', 'numba', 'gymnasium', 'matplotlib', 'tyro') if m in sys.modules])"
    )
    seconds = []
    for _ in range(3):
        before = cpu_of_children()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        seconds.append(cpu_of_children() - before)
        assert done.stdout.splitlines()[-1] == "[]"
    assert statistics.median(seconds) < 1.0  # 0.05 s on an idle machine


def test_help_lists_every_verb_and_each_verb_has_help(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for verb in VERBS:
        assert verb in listed
        assert main([verb, "--help"]) == 0
        assert f"usage: headrace {verb}" in capsys.readouterr().out


def test_help_of_train_shows_the_environments_own_defaults(capsys):
    assert command("train ppo CartPole-v1 --help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: 475.0)" in text  # target_return, registered with CartPole
    assert "environments that are stepped together" in text and "of Adam, at the start" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "did you mean 'train'?"),
        ("train pppo CartPole-v1", "did you mean 'ppo' or 'appo'?"),
        ("train PPO CartPole-v1", "did you mean 'ppo'?"),
        ("train --num-envs 3 PPO CartPole-v1", "did you mean 'ppo'?"),
        ("train ppo", "name an environment too, as in `headrace train ppo CartPole-v1`"),
        ("train ppo CartPole", "did you mean 'CartPole-v1'"),
        ("train ppo CartPole-v1 --num-env 3", "--num-envs"),
        ("train ppo CartPole-v1 --num-envs 0", "num_envs must be at least 1, got 0"),
        ("train ppo CartPole-v1 --gamma 2", "gamma must lie in [0, 1], got 2.0"),
        ("train ppo CartPole-v1 --seed x", "a whole number such as 8 is expected, got 'x'"),
        ("train ppo CartPole-v1 --config nowhere.toml", "nowhere.toml"),
        ("train ppo nowhere.py:MyEnv", "nowhere.py"),
        ("train", "ALGORITHM"),
        ("train --resume nowhere", "there is no file or folder nowhere"),
        ("train ppo Acrobot-v1 --env-kwargs gravity=3", "takes no gravity: use params, or --backend inline"),
        (
            "train ppo CartPole-v1 --collection double_buffered --actors 2",
            "--collection double_buffered is for workers",
        ),
        ("eval nowhere", "there is no file or folder nowhere"),
        ("eval nowhere --load-best --load-last", "exclude each other"),
        ("play nowhere", "there is no file or folder nowhere"),
        ("plot nowhere", "nowhere is not a run"),
        ("plot", "at least one run"),
    ],
)
def test_errors_are_printed_without_a_traceback(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(words) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_traceback_flag(capsys, monkeypatch):
    with pytest.raises(FileNotFoundError):
        command("plot nowhere --traceback")
    monkeypatch.setenv("HEADRACE_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        command("plot nowhere")


def test_an_error_in_the_users_own_code_keeps_its_traceback(tmp_path):
    (tmp_path / "broken.py").write_text("import gymnasium\nraise ValueError('my own')\n")
    with pytest.raises(ValueError, match="my own"):
        command("train ppo", f"{tmp_path}/broken.py:MyEnv")


def test_default_then_environment_then_file_then_flag(tmp_path, trained):
    (tmp_path / "some.toml").write_text("seed = 7\ngamma = 0.9\nnum_steps = 64\nhidden = [8, 8]\n")
    assert command("train ppo CartPole-v1 --gamma 0.5 --config", tmp_path / "some.toml") == 0
    ((named, settings),) = trained
    assert named == ("ppo", "CartPole-v1")
    assert settings == {"gamma": 0.5, "seed": 7, "num_steps": 64, "hidden": (8, 8)}  # flag before file
    trainer = hr.Trainer(*named, **settings)
    assert trainer.config.target_return == 475.0  # environment
    assert trainer.algorithm.config.value_coef == 0.5  # default


def test_names_may_stand_anywhere_or_in_the_file_and_numbers_be_short(tmp_path, trained):
    (tmp_path / "some.toml").write_text('algorithm = "ppo"\nenv = "Catch"\n')
    assert command("train --seed 3 ppo Pendulum-v1 --total-steps 2.5e6 --learning-rate 1e-3") == 0
    assert command("train --config", tmp_path / "some.toml") == 0
    assert [named for named, _ in trained] == [("ppo", "Pendulum-v1"), ("ppo", "Catch")]
    assert [trained[0][1][name] for name in ("seed", "total_steps", "learning_rate")] == [3, 2_500_000, 1e-3]
    assert trained[1][1] == {}


def test_what_is_not_typed_follows_from_the_number_of_envs(trained):
    for flags in ("", " --num-steps 40", " --no-scale", " --no-stagger"):
        assert command("train ppo Pendulum-v1 --num-envs 256" + flags) == 0
    chosen = [hr.Trainer(*named, **settings) for named, settings in trained]
    registered, out_of_step = (envs.spec("Pendulum-v1").defaults["ppo"][name] for name in ("num_steps", "stagger"))
    shorter, given, kept, again = (trainer.algorithm.num_steps for trainer in chosen)
    assert shorter == again < registered == kept and given == 40
    assert [trainer.config.stagger for trainer in chosen] == [True, True, out_of_step, False]


def test_rollouts_of_whole_sequences_follow_from_a_typed_length(tmp_path, monkeypatch, capsys):
    own = tmp_path / "own.py"
    own.write_text('import gymnasium\ndef make():\n    return gymnasium.make("CartPole-v1")\n')
    monkeypatch.chdir(tmp_path)
    words = ["train", "ppo", f"{own}:make", "--recurrent", "gru", "--rnn-size", "8", "--max-episodes", "1"]
    limits = ["--final-episodes", "0", "--log-folder", "runs"]
    main([*words, *limits, "--num-envs", "8", "--sequence-length", "12"])
    (tmp_path / "own.toml").write_text("sequence_length = 20")
    main([*words, *limits, "--num-envs", "3", "--config", "own.toml"])
    said = capsys.readouterr().out
    assert "num_steps 264" in said and "num_steps 440" in said  # 256 and the 427 of 3 environments, rounded up
    assert main([*words, "--sequence-length", "-4"]) == 2
    assert "sequence_length must be 0 or more, got -4; 0: all steps of a rollout" in capsys.readouterr().err


def test_resume_passes_on_only_what_a_flag_changes(run, trained):
    assert command("train --total-steps 9000 --resume", run) == 0
    ((named, options),) = trained
    assert named == ()
    assert options == {"env": None, "resume": run, "total_steps": 9000}


def test_train_evaluates_and_names_the_next_commands(tmp_path, capsys):
    assert command("train ppo Catch --total-steps 500 --final-episodes 3 --log-folder", tmp_path, *SMALL) == 0
    printed = capsys.readouterr().out
    assert "trained in " in printed
    assert "over 3 episodes" in printed
    for verb in ("eval", "play", "plot"):
        assert shlex.join(["headrace", verb, f"{tmp_path}/ppo/Catch_1"]) in printed


def test_next_commands_can_be_typed_and_a_video_is_offered_where_one_can_be_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blind.py").write_text(BLIND)
    offered = {"CartPoleHidden": "eval plot", "blind.py:Blind": "eval plot", "Catch": "eval play plot"}
    for env, verbs in offered.items():
        flags = ["--total-steps", "8", "--final-episodes", "0", "--log-folder", "all runs"]
        assert command("train ppo", env, *flags, *SMALL) == 0
        shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  headrace ")]
        assert [line.split()[1] for line in shown] == verbs.split(), env
        for line in shown:
            path = Path(shlex.split(line)[2])
            assert (path / "last").is_dir() and path.parts[0] == "all runs"
    assert command("eval", path, "--episodes", "1") == 0


def test_resume_goes_on(run, capsys):
    before = len((run / "monitor.csv").read_text().splitlines())
    assert command("train --total-steps 3000 --final-episodes 0 --resume", run) == 0
    printed = capsys.readouterr().out
    assert "s: 3," in printed and "evaluated" not in printed
    assert len((run / "monitor.csv").read_text().splitlines()) > before


def test_a_users_own_file_trains(tmp_path, capsys):
    source = f"{EXAMPLES}/my_env.py:Collect"
    assert (
        command("train ppo", source, "--total-steps=500", "--final-episodes=2", "--log-folder", tmp_path, *SMALL) == 0
    )
    assert "over 2 episodes" in capsys.readouterr().out


def test_eval_prints_a_table_or_json(run, capsys):
    assert command("eval --episodes 3", run) == 0
    header, names, returns, lengths = capsys.readouterr().out.splitlines()
    assert header.startswith("CartPole-v1: 3 episodes, deterministic")
    assert names.split() == ["mean", "std", "min", "median", "max"]
    assert returns.split()[1:] == lengths.split()[1:]  # CartPole's reward is 1 a step
    assert command("eval --episodes 3 --seed 5 --stochastic --load-last --json", run) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["env"], facts["policy"], facts["deterministic"], facts["seed"]) == ("CartPole-v1", "last", False, 5)
    assert facts["return"]["min"] <= facts["return"]["mean"] <= facts["return"]["max"]


def test_play_and_plot_write_images(run, tmp_path, capsys):
    assert command("play --output", tmp_path / "some" / "play.gif", run) == 0
    assert "episode 1: return" in capsys.readouterr().out
    assert (tmp_path / "some" / "play.gif").read_bytes().startswith(b"GIF89a")
    assert command("plot --output", tmp_path / "curves.png", run) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_images_do_not_replace_those_that_are_there(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("play.gif", "curves.png"):
        Path(name).write_text("an earlier one")
    assert command("play --max-steps 3", run) == command("plot", run) == 0
    assert Path("play.gif").read_text() == Path("curves.png").read_text() == "an earlier one"
    assert Path("play_2.gif").read_bytes().startswith(b"GIF89a") and Path("curves_2.png").exists()


def test_none_is_none_where_a_setting_may_be(trained):
    assert command("train ppo CartPole-v1 --target-return none --max-seconds=none --progress none") == 0
    assert trained[0][1] == {"target_return": None, "max_seconds": None, "progress": "none"}


def test_verbs_say_which_checkpoint_they_use_and_why_the_run_ended(run, capsys):
    steps = checkpoint.read_manifest(run / "last")["counters"]["steps"]
    assert command("eval --episodes 1 --load-last", run) == 0
    assert f"{run}/last, after {steps:,} steps; the run ended by total_steps" in capsys.readouterr().out


@pytest.mark.parametrize("reader", ["one line", "full disk"])
def test_a_run_goes_on_where_nobody_reads_its_output(reader, tmp_path):
    words = ["train", "ppo", "CartPole-v1", "--total-steps", "3000", "--log-folder", str(tmp_path), *SMALL]
    words += ["--final-episodes", "2", "--progress", "plain"]
    out = subprocess.PIPE if reader == "one line" else open("/dev/full", "w")  # noqa: SIM115
    process = forked.Popen([sys.executable, "-m", "headrace", *words], stdout=out, stderr=subprocess.PIPE)
    out.close() if process.stdout is None else process.stdout.close()
    _, said = process.communicate()
    assert process.returncode == 0 and b"Error" not in said, said
    assert checkpoint.read_manifest(tmp_path / "ppo" / "CartPole-v1_1" / "last")["ended_by"] == "total_steps"


@pytest.mark.parametrize("more", [[], pytest.param(["--jobs", "2"], marks=pytest.mark.slow)])
def test_seeds_go_on_where_the_disk_behind_their_output_is_full(more, tmp_path):
    words = ["train", "ppo", "CartPole-v1", "--seeds", "1-3", "--total-steps", "600", "--log-folder", str(tmp_path)]
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "headrace", *words, *SMALL, "--final-episodes", "0", *more]
        done = forked.run(words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 0 and b"Error" not in done.stderr, done.stderr
    assert len([*tmp_path.glob("ppo/*/last/manifest.json")]) == 3


def test_envs_lists_spaces_and_backends(capsys):
    assert command("envs") == 0
    table = capsys.readouterr().out
    (line,) = [line for line in table.splitlines() if line.startswith("Pendulum-v1")]
    assert line.split("  ", 1)[1].split() == ["Box(3)", "Box(1)", "±2", "cpu", "cuda", "torch", "inline"]
    assert "file.py:Class" in table
    assert command("envs --json") == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)} >= {"CartPole-v1", "Catch", "GridWorld"}


def test_ctrl_c_saves_says_how_to_go_on_and_exits_0(tmp_path):
    words = ["train", "ppo", "CartPole-v1", "--total-steps", "1e9", "--log-folder", str(tmp_path), *SMALL]
    with forked.Popen([sys.executable, "-m", "headrace", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            monitor = tmp_path / "ppo" / "CartPole-v1_1" / "monitor.csv"
            while not monitor.exists() and process.poll() is None:
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGINT)
            printed, _ = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0
    assert f"headrace train --resume {shlex.quote(str(monitor.parent))}" in printed
    assert (monitor.parent / "last" / "manifest.json").exists()


def test_a_syntax_error_in_a_file_of_the_user_is_told_in_a_line(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    assert command(f"train ppo {tmp_path / 'broken.py'}:Env") == 2
    assert re.fullmatch(r"headrace: .*broken\.py, line 2: .*\n", capsys.readouterr().err)


def test_registered_settings_are_named_where_others_are_given_and_can_be_left_out(tmp_path, capsys):
    small = [*SMALL, "--total-steps", "500", "--final-episodes", "0", "--log-folder", tmp_path]
    assert command("train ppo CartPole-v1 --learning-rate 0.001", *small) == 0
    said = capsys.readouterr()
    line = next(line for line in (said.out + said.err).splitlines() if line.startswith("registered for CartPole-v1: "))
    assert "clip 0.3" in line and "learning_rate" not in line
    assert command("train ppo CartPole-v1 --learning-rate 0.001 --no-registered", *small) == 0
    said = capsys.readouterr()
    assert "registered for" not in said.out + said.err
    settings = tomllib.loads((tmp_path / "ppo" / "CartPole-v1_2" / "config.toml").read_text())
    assert (settings["clip"], settings["learning_rate"], settings["registered"]) == (0.2, 0.001, False)


def test_resuming_says_what_it_changes_and_where_there_is_nothing_to_do(run, capsys):
    assert command("train --final-episodes 0 --learning-rate 0.5 --resume", run) == 0
    said = capsys.readouterr()
    assert "learning_rate" in said.out + said.err and "-> 0.5 from step" in said.out + said.err
    assert re.search(r"nothing to do: \w+ [\d,.]+ is reached already", said.out + said.err)
