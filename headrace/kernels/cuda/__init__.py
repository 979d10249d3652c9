"""Kernels of small networks for CUDA: acting, PPO's learning, Adam. A block of threads takes a tile of rows through all
layers, with what they compute in shared memory; plain torch launches some hundred kernels in its place."""
