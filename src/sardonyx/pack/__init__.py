"""Packs: files with a lowered model and its prepacked weights, mapped by later loads.

A pack has the lowered graph, and every constant in a layout that the model's own files do not have:
prepacked for a kernel, aligned, or computed. What kernels can read from those files stays there.

A pack may be stale, damaged or hostile, so nothing in it is used before it was validated:

| what | where |
|---|---|
| fingerprint of the model, options, versions of layouts | `identity` |
| header, sections, offsets of blobs (checksums) | `file` |
| bytes of blobs and of the model's weights (checksums) | `validate`, `checksums` |
| outcomes of those, remembered between processes | `verification_cache` |
| types and ranges in the JSON documents | `codec`, `constants`, `graph` |
| facts of values, inferred again | `graph` |
| sizes of packed blobs, computed again | `read` |
| preconditions of kernels, which do not check them | `check`, `contracts` |
| indices of the program that is made of the graph | `native/exec/check.cc` |

`lookup` finds the pack of a model, `read` reads it, `write` writes it, `target` protects other
files from being overwritten.
"""
