"""Triton kernels, one subject a file; each has a twin in plain torch in `trivet_cuda.twins`.

Pointers and strides only, so that the same code runs from Triton 3.6 on, interpreted and compiled ahead of
time. Tiles come from `trivet_cuda.tiles` and never from measuring at run time: what is launched
is what was compiled and looked at before. Whole numbers that change from step to step are not specialised on,
since a new value would compile a kernel in the middle of serving.
"""
