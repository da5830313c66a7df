"""What the runners of several kinds of hardware share: state of a step, slices, ranks, graphs, op checks.

Nothing here is a contract: a runner that does these things in its own way need not know this package.
"""
