"""A CUDA device that is simulated, so that the GPU path runs on a CPU build of torch.

A program says `import simulated_gpu.attach` before it imports torch; then `device="cuda"` trains,
`torch.cuda` answers and the profiler writes kernels and copies. Results are computed on the CPU;
a simulated clock says when the device would have been done, and whatever synchronises sleeps until
then. The variable SIMULATED_GPU plants costs and sizes: see `Settings` in clock.h.
"""
