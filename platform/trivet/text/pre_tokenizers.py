"""How byte-level vocabularies cut text into words before merging, by GGUF's `tokenizer.ggml.pre`.

A GGUF file names the rule and does not carry it. The expressions are those of the models' own
tokenizer.json files, which llama.cpp quotes beside its adaptations (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from trivet.errors import ModelFilesError


@dataclass(frozen=True, slots=True)
class WordRule:
    """One rule. Each expression cuts what the one before it left into its matches and the gaps between."""

    expressions: tuple[str, ...]
    takes_whole_words: bool = False  # a word that is a token is taken as it is, without merging
    composes: bool = False  # Unicode NFC first
    adds_bos: bool = False  # where the file does not say

    def pre_tokenizer(self) -> PreTokenizer:
        splits = [Split(Regex(expression), behavior="isolated") for expression in self.expressions]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_DIGITS = r"\p{N}"
_TRIPLES = r"\p{N}{1,3}"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|\s+(?!\S)|\s+"


def _tiktoken(digits: str, word: str = _WORD, symbols: str = rf"{_SYMBOLS}[\r\n]*") -> str:
    return f"{_CONTRACTIONS}|{word}|{digits}|{symbols}|{_SPACE}"


def _cased(digits: str, suffix: str = "") -> str:
    """Words split where lower case turns to upper case (o200k, tekken)."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{words}|{digits}|{_SYMBOLS}[\r\n/]*|{_SPACE}"


_KANJI_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"  # as DeepSeek wrote it: from U+0800 on
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN35 = _tiktoken(_DIGITS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_SEED = _tiktoken(_DIGITS, symbols=r" ?[^\s\p{L}\p{N}\r\n]+")

_LLAMA3_NAMES = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
_QWEN2_NAMES = "deepseek-r1-qwen stablelm2 hunyuan megrez kormo f2llmv2 solar-open grok-2"
_RULES = {
    # What llama.cpp takes where a file has no name at all: Falcon's cuts, with runs of digits apart.
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": WordRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 olmo mpt jais gigachat mellum exaone4 trillion a.x-4.0": WordRule((_GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": WordRule((_DIGITS, _GPT2)),
    _LLAMA3_NAMES: WordRule((_tiktoken(_TRIPLES),), takes_whole_words=True, adds_bos=True),
    "dbrx smaug-bpe glm4 chatglm-bpe": WordRule((_tiktoken(_TRIPLES),)),
    "qwen2": WordRule((_tiktoken(_DIGITS),), composes=True),
    _QWEN2_NAMES: WordRule((_tiktoken(_DIGITS),)),
    "qwen35": WordRule((_QWEN35,), composes=True),
    "tekken": WordRule((_cased(_DIGITS),), takes_whole_words=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": WordRule((_cased(_TRIPLES, f"{_CONTRACTIONS}?"),)),
    "deepseek-coder": WordRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGITS)),
    "deepseek-v3 hunyuan-dense joyai-llm": WordRule((_TRIPLES, _KANJI_KANA, _DEEPSEEK3)),
    "bloom gpt3-finnish poro-chat": WordRule((_BLOOM,)),
    "viking": WordRule((_BLOOM, _DIGITS)),
    "bailingmoe bailingmoe2 llada-moe": WordRule((_BAILING,)),
    "seed-coder": WordRule((_SEED,)),
}
WORD_RULES = {name: rule for names, rule in _RULES.items() for name in names.split()}


def word_rule(name: str, file: str) -> WordRule:
    """Raises: ModelFilesError for a name that is not known; a guess would make answers a little wrong."""
    try:
        return WORD_RULES[name]
    except KeyError:
        raise ModelFilesError(
            f"{file}: tokenizer.ggml.pre is {name!r}, which is not known; known are "
            f"{', '.join(sorted(WORD_RULES))}. "
            "Use the model's folder with tokenizer.json, which carries the rule"
        ) from None
