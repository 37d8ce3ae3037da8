"""Sans-IO codecs of the sources' wire formats: bytes in, records and columns out.

They use no socket, clock or thread. The loops over bytes are numba kernels over whole batches,
compiled once per machine (``cache=True``), which run without the interpreter lock.
"""
