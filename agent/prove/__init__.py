"""``kubemend prove``: prove that an idle GPU computes, stores and copies correctly.

``proving`` selects the idle GPUs and starts one ``worker`` process for each, because any CUDA call can block
indefinitely. The worker (``measuring``) calls the CUDA driver API (``cuda``) and runs the kernels of ``kernels``.
``measurements`` are its results as values, ``judging`` turns them into verdicts, ``rendering`` formats those.
"""
