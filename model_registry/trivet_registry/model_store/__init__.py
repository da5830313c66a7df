"""Where model files lie: the site's own store, and files that stay where they were registered.

- `models add PATH` (and a launch by path) registers files *in place*: nothing is copied, and what was
  registered (size, time, SHA-256) tells when they have changed. This is the default for what is on the host.
- `models add --copy`, `models pull`, `models import` put files into the store, `models/` of the home:

      blobs/ab/abcdef...     a file by its SHA-256, read only: the same file of two versions is there once
      trees/<digest>/...     one version: hard links to its blobs, by the files' own names: engines open this
      partial/<key>          a file that is still coming, with what is known so far; it is gone on with
      damaged/<digest>       a blob that was found to be none any more, until the file is added again
      lock                   held shared by who adds and alone by `gc`; a lock ends with its process

A file becomes a blob by `fsync` and `rename` after its SHA-256 was computed, a tree by `rename` when all its
links are there: whatever is killed, a blob or a tree is whole or it is not there.
"""
