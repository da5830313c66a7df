"""The CUDA backend on Triton's interpreter: kernels run on the CPU, program after program."""
