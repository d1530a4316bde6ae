"""Serving code that is measured and exported: these files are copied as they are next to the acceptance test.

They import torch, NumPy and each other, nothing of autoopt; ``onnxruntime`` and ``torchao`` where a variant is made of
them.
"""
