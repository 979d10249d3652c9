#!/usr/bin/env bash
# Makes the virtual environments in which the benchmarks run other libraries, under $PEERS_HOME (by default .peers in the
# repository's folder, where the benchmarks look). Usage: benchmarks/peers/setup.sh [torch] [jax] [rejax] [rlox] [rllib] [sample_factory]
# Exact versions, Python 3.11 ($PYTHON for another). Torch is installed first, as the build that pip finds: set
# TORCH_INDEX to the index of its CPU builds to be spared a GPU build's gigabytes.
set -euo pipefail

home=${PEERS_HOME:-$(cd "$(dirname "$0")/../.." && pwd)/.peers}
python=${PYTHON:-python3.11}
torch=torch==2.13.0

into() { # folder, packages ...
  [ -d "$home/$1" ] || "$python" -m venv "$home/$1"
  "$home/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

torch_into() { into "$1" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"; }

mkdir -p "$home"
for name in "${@:-torch jax rejax rlox}"; do
  for peer in $name; do
    case $peer in
      torch) # Stable-Baselines3 and its contrib, EnvPool, TorchRL, RLtools and the plain torch program; Box2D, MuJoCo and Atari
        torch_into torch
        into torch $torch stable-baselines3==2.9.2 sb3-contrib==2.9.2 envpool==1.2.5 "gymnasium[box2d,mujoco]==1.4.0" numpy==2.4.6 \
          rltools==2.2.1 mkl==2026.2.0 mkl-include==2026.2.0 \
          mujoco==4.0.0 ale-py==0.12.1 opencv-python-headless==5.0.0.93 torchrl==0.14.1 \
          pandas==3.0.6 tensorboard==2.21.0 tqdm==4.70.1 ;; # these three are for Stable-Baselines3's own tests
      jax) # SBX, gymnax
        torch_into jax
        into jax $torch "jax[cpu]==0.10.2" gymnax==1.0.1 sbx-rl==0.28.0 stable-baselines3==2.9.2 gymnasium==1.3.0 \
          numpy==2.4.6 ;;
      rejax) # gymnax's step() gives six values from 1.0 on, and rejax 0.1.3 unpacks five
        into rejax "jax[cpu]==0.10.2" gymnax==0.0.9 rejax==0.1.3 flax==0.12.8 distrax==0.1.9 gymnasium==1.4.0 \
          numpy==2.4.6 ;;
      rlox)
        torch_into rlox
        into rlox $torch rlox==1.2.0 gymnasium==1.4.0 numpy==2.4.6 ;;
      rllib)
        torch_into rllib
        into rllib $torch "ray[rllib]==2.60.0" gymnasium==1.2.2 ;;
      sample_factory)
        torch_into sample_factory
        into sample_factory $torch sample-factory==2.1.1 ;;
      *) echo "setup.sh: there is no peer '$peer' (there are torch, jax, rejax, rlox, rllib, sample_factory)" >&2; exit 2 ;;
    esac
    echo "$peer: ready in $home/$peer"
  done
done
