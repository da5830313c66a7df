"""The engine core: sequence, block_pool, scheduler, batch, sampling_columns, commit, core.

NumPy only. Read in this order; `core.EngineCore.step` is the loop that ties them together.
"""
