"""Kernels of small networks for CUDA: acting, PPO's learning, Adam. A block of threads takes a tile of rows through all
layers, and keeps what they compute in shared memory. Plain torch launches some hundred kernels for the same work."""
