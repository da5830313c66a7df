"""Before any kernel is launched, the interpreter's arithmetic is repaired."""

from trivet_cuda_interpreted.repair import install

install()
