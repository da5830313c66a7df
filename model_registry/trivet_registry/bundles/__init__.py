"""Models for sites without a network: one signed file that is made on one site and taken in on another.

A bundle is a tar file, uncompressed, in this order:

    manifest.json     model, version, source, licence, and of each file its name, size and SHA-256
    manifest.sig      64 bytes: the Ed25519 signature of manifest.json
    blobs/<sha256>    the files; a bundle made with a list of what the other site has leaves those out

It is trusted for its key, never for where it came from: the signature is checked before anything else is
believed, each file against the manifest, and the model has to answer one token before it is registered.
"""
