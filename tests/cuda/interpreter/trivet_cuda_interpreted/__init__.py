"""The CUDA backend on Triton's interpreter: kernels run on the CPU, program after program."""

from trivet_cuda_interpreted.repair import install

install()
