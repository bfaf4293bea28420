"""A model hub for the hosts: the few parts of Hugging Face's layout that a download needs.

``/<org>/<model>/resolve/<revision>/<file>``   a file (ranges, ETag = sha256)
``/<org>/<model>/sha256?revision=<revision>``  JSON list of path, size, sha256
``/files/<path>``                              any other file (source archives)
``/sha256``                                    JSON list of everything there is

The files lie in the cache folder; faults are switched from another process.
"""
