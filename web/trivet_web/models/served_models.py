"""What a web process needs of a model's files: tokenizer, chat template, defaults; loaded on first use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from trivet.errors import ModelFilesError, RequestError, TrivetError, Unavailable
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.pooling_config import model_pooling
from trivet.text.chat_template import ChatTemplate
from trivet.text.reasoning import END, FORMATS, ReasoningFormat
from trivet.text.tokenizer import Tokenizer, load_tokenizer
from trivet.text.tool_calls.formats import format_of
from trivet.text.tool_calls.hermes import HermesParser
from trivet.text.tool_calls.parser import ToolParser
from trivet_web.engines.routing import FileSet

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 30.0  # of a request that waits for another one's reading
# Of generation_config, what we carry out.
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The text side of one set of model files."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    context_length: int
    num_tokens: int  # ids from here on are refused in prompts
    sampling_defaults: Mapping[str, float]
    template_takes_tools: bool = False
    tool_format: type[ToolParser] | None = HermesParser  # None: unknown; that of text/tool_prompt.py without
    reasoning_format: ReasoningFormat | None = None
    pools: bool = False  # its files say how a text becomes one vector: it is made for embeddings

    def require_template(self, name: str) -> ChatTemplate:
        """Raises: RequestError where the files bring none."""
        if self.template is None:
            raise RequestError(
                f"model {name!r} has no chat template; use /v1/completions with a plain prompt",
                param="messages",
            )
        return self.template


def load_served_model(path: str) -> ServedModel:
    """Raises: ModelFilesError naming the file."""
    files = open_model(path)
    return served_model(files, load_tokenizer(files.path))


def served_model(files: ModelFiles, tokenizer: Tokenizer) -> ServedModel:
    """Raises: ModelFilesError for a template that cannot be read."""
    template = None
    if files.chat_templates:
        template = ChatTemplate(files.chat_templates, tokenizer.bos_token, tokenizer.eos_token)
    source = "" if template is None else template.source
    takes_tools = "tools" in source
    thinks = END in source or tokenizer.id_of(END) is not None
    return ServedModel(
        tokenizer=tokenizer,
        template=template,
        context_length=files.context_length,
        num_tokens=tokenizer.vocab_size,
        sampling_defaults={
            k: files.generation_defaults[k] for k in _DEFAULTS if k in files.generation_defaults
        },
        template_takes_tools=takes_tools,
        tool_format=format_of(source) if takes_tools else HermesParser,
        reasoning_format=FORMATS["qwen3"] if thinks else None,
        pools=_pools(files),
    )


def _pools(files: ModelFiles) -> bool:
    try:
        return model_pooling(files) is not None
    except ModelFilesError:  # in a way that we do not carry out: whoever wants a vector is told
        return True


class ServedModels:
    """Cache by file set. A tokenizer takes up to a second and 100 MB, so each is loaded once."""

    def __init__(
        self, load: Callable[[str], ServedModel] = load_served_model, load_timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        self._load = load
        self._load_timeout_s = load_timeout_s
        self._lock = threading.Lock()
        self._loading: dict[FileSet, threading.Lock] = {}
        self._models: dict[FileSet, ServedModel] = {}

    def get(self, files: FileSet) -> ServedModel:
        """Raises: ModelFilesError naming the file; Unavailable while another thread takes long to read it."""
        if (model := self._models.get(files)) is not None:
            return model
        with self._lock:
            loading = self._loading.setdefault(files, threading.Lock())
        # Others wait for this one, and requests for other models do not.
        if not loading.acquire(timeout=self._load_timeout_s):
            waited = f"is being read for longer than {self._load_timeout_s:g} s"
            raise Unavailable(f"the tokenizer of {files.path} {waited}; try again", retry_after_s=10)
        try:
            if files not in self._models:
                self._models[files] = self._load(files.path)
            return self._models[files]
        finally:
            loading.release()

    def follow(self, deployed: Collection[FileSet]) -> None:
        """Load what is deployed before the first request needs it; forget what no longer is."""
        for files in set(self._models) - set(deployed):
            self._models.pop(files, None)
        with self._lock:
            for files in set(self._loading) - set(deployed):  # deployed again later, it is new again
                del self._loading[files]
            new = set(deployed) - set(self._loading)
            self._loading.update({files: threading.Lock() for files in new})
        for files in new:
            thread = threading.Thread(target=self._prepare, args=(files,), name="load-tokenizer", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit of threads: the first request loads it
                logger.warning("model path=%s is not prepared: %s", files.path, error)

    def _prepare(self, files: FileSet) -> None:
        try:
            self.get(files)
        except TrivetError as error:  # the request that needs it will say so, too
            logger.warning("model path=%s cannot be prepared: %s", files.path, error)
        except Exception:  # a border: a stranger's file may raise what no reader of it foresaw
            logger.exception("model path=%s cannot be prepared", files.path)
