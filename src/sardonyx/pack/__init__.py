"""Packs: files that hold a model as it runs, which a later load maps instead of compiling it.

A pack has the lowered graph and every constant in a form that its file does not have: packed by a
kernel row, aligned, or computed. What kernels can read from the model's own files stays there.
"""
