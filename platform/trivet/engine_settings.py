"""The settings of one deployment, validated; `trivet launch --set KEY=VALUE` and the API give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from trivet.adapters import MAX_RANK, parse_adapters, spelled_adapters, with_own_adapter_settings
from trivet.config import YEAR_S
from trivet.errors import ConfigError
from trivet.setting_faults import refuse_unknown, type_sentence

LIVE_SETTINGS = frozenset({"idle_timeout_s"})  # the supervisor acts on them: changing one restarts nothing
NO_VALUE = ("none", "null", "")  # in lower case: the setting's None
OPTION_PREFIX = "options."  # of an engine setting that belongs to the backend
TOOL_CALL_PARSERS = (
    *("auto", "none", "hermes", "qwen", "llama3_json", "mistral", "glm", "glm45"),
    *("deepseek", "deepseek_v3", "deepseek_v31", "qwen3_coder"),
)
REASONING_PARSERS = ("auto", "none", "deepseek_r1", "qwen3", "glm", "glm45")
TASKS = ("auto", "generate", "embed", "score")
_MAPPINGS = ("adapters", "options")  # have a spelling of their own


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one deployment (`trivet launch --set KEY=VALUE`); vLLM's names where it has one."""

    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None  # share of a device's memory, any device
    tensor_parallel_size: int = 1
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None  # KV blocks, block 0 included
    kv_cache_dtype: str = "auto"
    swap_space: float = 0.0  # GiB of host memory for the KV of preempted sequences
    quantization: str | None = None
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024  # a longer queue answers 429
    step_timeout_s: float = 60.0  # an engine whose step takes longer ends itself, and is started again
    seed: int = 0
    served_model_name: str | None = None
    tool_call_parser: str = "auto"  # how the model writes calls of tools; auto: as its chat template says
    reasoning_parser: str = "auto"  # how it marks its thinking
    task: str = "auto"  # what clients are told that it is for (vLLM's name); it can do the others as well
    trust_request_chat_template: bool = False  # requests may bring a chat template
    num_threads: int | None = None
    idle_timeout_s: float | None = None  # unloaded after so long without a request; the next one wakes it
    adapters: dict[str, str] = {}  # folders of PEFT by name: LoRA adapters beside the model itself
    max_loras: int | None = None  # slots for adapters (vLLM's name); None: as many as are given
    max_lora_rank: int | None = None  # the largest rank of one (vLLM's name); None: of those given, else 16
    options: dict[str, str] = {}  # the backend's own, spelt `options.NAME`

    def to_text(self) -> dict[str, str]:
        """Only what differs from the defaults, as `--set` would spell it."""
        defaults = EngineSettings()
        plain = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name in self.__struct_fields__
            if name not in _MAPPINGS and (value := getattr(self, name)) != getattr(defaults, name)
        }
        if self.adapters:
            plain["adapters"] = spelled_adapters(self.adapters)
        return plain | {OPTION_PREFIX + name: value for name, value in self.options.items()}


def spelled_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """As `--set` would spell them."""
    text = {key: str(value) for key, value in settings.items()}
    if isinstance(adapters := settings.get("adapters"), Mapping):
        text["adapters"] = spelled_adapters({str(name): str(folder) for name, folder in adapters.items()})
    if isinstance(options := settings.get("options"), Mapping):
        del text["options"]
        text |= {OPTION_PREFIX + str(name): str(option) for name, option in options.items()}
    return text


def parse_engine_settings(pairs: Mapping[str, str]) -> EngineSettings:
    """Raises: ConfigError naming the key and the nearest one, or the value and its type."""
    options = {
        key.removeprefix(OPTION_PREFIX): value
        for key, value in pairs.items()
        if key.startswith(OPTION_PREFIX)
    }
    own = with_own_adapter_settings(
        {key: value for key, value in pairs.items() if not key.startswith(OPTION_PREFIX)}
    )
    refuse_unknown(
        own, [name for name in EngineSettings.__struct_fields__ if name != "options"], "engine settings"
    )
    given = own.pop("adapters", "")
    adapters = {} if given.lower() in NO_VALUE else parse_adapters(given)
    plain: dict[str, Any] = {key: None if value.lower() in NO_VALUE else value for key, value in own.items()}
    try:
        both = {"adapters": adapters, "options": options}
        settings = msgspec.convert({**plain, **both}, EngineSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"engine settings: {type_sentence(error, own, EngineSettings)}") from error
    _check_ranges(settings)
    return settings


def _check_ranges(settings: EngineSettings) -> None:
    for name in (
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tensor_parallel_size",
        "block_size",
        "max_num_waiting",
        "num_threads",
        "max_loras",
        "max_lora_rank",
    ):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    for name, known in (
        ("tool_call_parser", TOOL_CALL_PARSERS),
        ("reasoning_parser", REASONING_PARSERS),
        ("task", TASKS),
    ):
        if getattr(settings, name) not in known:
            raise ConfigError(f"{name} is {getattr(settings, name)!r}; it must be one of {', '.join(known)}")
    _check_adapters(settings)
    share = settings.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization is {share}; it is a share of a device's memory in (0, 1]")
    if not 0 < settings.step_timeout_s <= YEAR_S:
        raise ConfigError(
            f"step_timeout_s is {settings.step_timeout_s}; it must be seconds, more than 0, at most a year's"
        )
    idle_s = settings.idle_timeout_s
    if idle_s is not None and not 0 < idle_s <= YEAR_S:
        raise ConfigError(
            f"idle_timeout_s is {idle_s}; it must be seconds, more than 0, at most a year's, or none"
        )
    if not 0 <= settings.swap_space < math.inf:
        raise ConfigError(f"swap_space is {settings.swap_space}; it is GiB of host memory, 0 or more")
    blocks = settings.num_gpu_blocks_override
    if blocks is not None and blocks < 2:
        raise ConfigError(f"num_gpu_blocks_override is {blocks}; it must be at least 2")


def _check_adapters(settings: EngineSettings) -> None:
    count, slots, rank = len(settings.adapters), settings.max_loras, settings.max_lora_rank
    if slots is not None and slots < count:
        raise ConfigError(
            f"max_loras is {slots} and {count} adapters are given, each of which has a slot of its own; "
            f"set it to at least {count}, or leave it unset"
        )
    if rank is not None and rank > MAX_RANK:
        raise ConfigError(f"max_lora_rank is {rank}; it must be at most {MAX_RANK}")
