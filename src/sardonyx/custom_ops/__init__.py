"""Custom ops: declared by users in Python (`python_op`) or as C functions (`native_op`)."""
