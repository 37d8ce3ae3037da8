"""Sans-IO codecs of the sources' wire formats: bytes in, records and columns out.

No socket, clock or thread here. The loops over bytes are numba kernels over whole batches, compiled
once per machine (``cache=True``) and run without the interpreter lock.
"""
