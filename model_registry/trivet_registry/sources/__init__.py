"""Where models come from: `hf:org/name[@revision][:FILE]`, `ms:org/name[...]`, `trivet:URL/name[:version]`.

A source says which files there are, their sizes and checksums, and where each is (`remote.Remote`); one
downloader fetches them all, by ranges, into the site's store. Hugging Face and ModelScope are spoken to by
their documented HTTP interfaces and not through `huggingface_hub` and `modelscope`: those would bring caches
and locks of their own beside the store, follow redirects to any address, and modelscope a tree of packages.
"""
