"""One tokenizer for all model files: `tokenizer.json` in a folder, or the vocabulary of a GGUF file.

The work is the `tokenizers` library's; transformers is not imported (2 s and 200 MB). Ids become text by
our own table (token_bytes.py), the same for whole texts and for streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Backend

from trivet.errors import ModelFilesError, TrivetError
from trivet.text.folder_tokenizer import read_folder
from trivet.text.gguf_tokenizer import read_gguf
from trivet.text.special_tokens import EndTokens
from trivet.text.token_bytes import TokenBytes


class Tokenizer:
    """Text to ids and back. Safe to share between threads.

    `vocab_size` is one above the highest id; a model's logits may have more columns (padding).
    """

    def __init__(self, backend: Backend, ends: EndTokens | None = None) -> None:
        ends = ends or EndTokens()
        # A file may carry the truncation and padding of its training; a server must do neither.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bos_token = ends.bos
        self.eos_token = ends.eos
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        self.token_bytes = TokenBytes(backend, self.vocab_size)

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special_tokens: bool = True
    ) -> list[int]:
        """Ids of one text.

        Args:
            add_special_tokens: put the model's begin and end tokens around it. A rendered chat template
                has them in it already.
            parse_special_tokens: read "<|im_end|>" in the text as that token. False spells it out in plain
                tokens, for text of a user that must not end a turn; added tokens that the model's files
                do not call special are parsed either way.
        """
        return self.encode_batch([text], add_special_tokens, parse_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True, parse_special_tokens: bool = True
    ) -> list[list[int]]:
        """Ids of several texts.

        Runs without the GIL: the library's own `encode` holds it, 60 to 100 ms for 30k tokens, in which
        a web worker would relay nothing.
        """
        backend = self._backend if parse_special_tokens else self._plain_backend
        with faults_named("the model's tokenizer cannot read this text"):
            encodings = backend.encode_batch_fast(
                [_without_surrogates(text) for text in texts], add_special_tokens=add_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = self.token_bytes.join(token_id for token_id in ids if token_id not in skipped)
        if self.token_bytes.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        """One token as it reads alone; part of a character reads as U+FFFD (`token_bytes` has its bytes)."""
        return self.token_bytes[token_id].decode("utf-8", errors="replace")

    def id_of(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it, such as "<|im_end|>"."""
        return self._backend.token_to_id(token)

    @cached_property
    def max_token_bytes(self) -> int:
        """Of the longest token: no text has more bytes than this for each of its tokens."""
        return self.token_bytes.longest()

    @cached_property
    def _plain_backend(self) -> Backend:
        """A copy that takes special tokens for text.

        The switch is part of the library's object, which other threads are using.
        """
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend


@contextmanager
def faults_named(what: str) -> Iterator[None]:
    """What the library raises becomes a sentence: for some files plain exceptions, for others Rust's panics.

    Raises: ModelFilesError; Trivet's own errors as they are.
    """
    try:
        yield
    except (TrivetError, MemoryError):
        raise
    except BaseException as error:
        # A panic's class is in no module, and no Exception: it would pass every border.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ModelFilesError(f"{what}: {str(error)[:300]}; fetch the model again") from error
        raise


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model folder or of a GGUF file.

    Raises: ModelFilesError naming the file, what is wrong with it and what would do.
    """
    path = Path(path)
    with faults_named(f"the tokenizer of {path} cannot be used"):
        if path.is_dir():
            return Tokenizer(*read_folder(path))
        if path.is_file():
            return Tokenizer(*read_gguf(path))
    raise ModelFilesError(f"{path} does not exist; give a model folder or a GGUF file")


def _without_surrogates(text: str) -> str:
    """JSON can carry half a surrogate pair ("\\ud83d"); the library takes UTF-8 only, which has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
