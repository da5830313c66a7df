"""Architectures without a spec, in transformers' own code over the paged cache, against its `generate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import transformers

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.errors import ModelFilesError, UnsupportedArchitecture, WeightsError
from trivet.models.hf_folder import open_folder
from trivet.models.transformers_outline import outline_spec
from trivet.plugins import load_plugins

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GQA = {"num_key_value_heads": 2, "intermediate_size": 80}
FAMILIES: Mapping[str, Mapping[str, object]] = {
    "gpt_neox": {"intermediate_size": 80},
    "gpt2": {},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 48},
    "phi3": GQA,
    "olmo2": GQA,
    "starcoder2": {**GQA, "sliding_window": 16},
    "gemma2": {**GQA, "head_dim": 12, "sliding_window": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**GQA, "head_dim": 12, "sliding_window": 16, "layer_types": ["sliding_attention"] * 3},
    "mixtral": {**GQA, "num_local_experts": 4},
}
NUM_TOKENS = 12
ORIGINAL_LEN = 16  # tokens, below two of the prompts
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": ORIGINAL_LEN,
    "short_factor": [1.0] * 6,
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(model_type: str, **changes: object) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        shape = {**SHAPE, **FAMILIES.get(model_type, GQA), **changes}
        config = transformers.AutoConfig.for_model(model_type, **shape)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                spread = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(1 + 0.2 * spread if "norm" in name else 0.25 * spread)
        model.save_pretrained(folder)
        return folder

    return make


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(3, 97, (n,), generator=generator).tolist() for n in (5, 23, 40)]


def _expected(folder: Path) -> list[list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None  # every sequence to its full length
    settings = transformers.GenerationConfig(
        max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return [
        model.generate(torch.tensor([prompt]), settings)[0, len(prompt) :].tolist() for prompt in _prompts()
    ]


def _ours(folder: Path, **settings: int) -> list[list[int]]:
    files = open_folder(folder, {})
    backend = load_plugins().backend("cpu")
    spec = outline_spec(files.config)
    config = RunnerConfig(dtype="f32", max_num_seqs=4, options={"num_threads": "1"}, **settings)
    devices = backend.probe(5.0)
    plan = backend.plan(spec, files.weights, config, devices)
    runner = backend.create_runner(spec, config, plan, devices)
    try:
        runner.load(files.weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        planned = {part.name: part.size_bytes for part in plan.parts}
        measured = {part.name: part.size_bytes for part in runner.memory()}
        assert measured["weights"] == pytest.approx(planned["weights"], rel=0.02)
        driver = Driver(runner, plan, vocab_size=spec.vocab_size, max_num_seqs=4)
        return driver.generate([driver.add(prompt) for prompt in _prompts()], NUM_TOKENS, chunk=17)
    finally:
        runner.close()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_ids_equal_those_of_transformers(model_type: str, make_folder: Callable[..., Path]) -> None:
    folder = make_folder(model_type)
    assert _ours(folder) == _expected(folder)


def test_frequencies_that_follow_the_length_are_fixed_once(make_folder: Callable[..., Path]) -> None:
    """transformers takes the long or the short factors by the longest sequence of a batch.

    Cached keys cannot follow that, and a sequence would depend on its neighbours. Its own `generate` uses
    the long ones throughout for the prompts beyond the original length.
    """
    folder = make_folder("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=ORIGINAL_LEN)
    assert _ours(folder)[1:] == _expected(folder)[1:]
    short = _ours(folder, max_model_len=4 * ORIGINAL_LEN)
    assert short == _ours(folder), "any length beyond the original takes the same factors"


def test_a_length_without_learned_positions_is_refused(make_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="position 199"):
        _ours(make_folder("gpt2"), max_model_len=200)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}, "known neither to Trivet nor"),
        (
            {"architectures": ["BloomForCausalLM"], "model_type": "bloom"},
            "does not let the attention be replaced",
        ),
        (
            {"architectures": ["Llama4ForCausalLM"], "model_type": "llama4", "attention_chunk_size": 64},
            "chunked",
        ),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "layer_types": ["conv"]}, "conv"),
        (
            {"architectures": ["BertLMHeadModel"], "model_type": "bert", "is_encoder_decoder": True},
            "has an encoder",
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "kv_lora_rank": 8},
            "has latent attention",
        ),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "gives no hidden_size"),
        ({}, r"\(none\)"),
    ],
    ids=[
        "unknown",
        "no attention backend",
        "chunked attention",
        "other layers",
        "an encoder",
        "latent attention",
        "no sizes",
        "no architecture",
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(
    config: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=reason):
        outline_spec(config)


UNKNOWN: Mapping[str, tuple[str, Mapping[str, object], str]] = {
    "sinks": ("gpt_oss", {}, "passes s_aux to attention"),
    "looking ahead": ("bert", {"is_decoder": False, "num_key_value_heads": 4}, "attention that looks ahead"),
    "a mask of its own": ("doge", {}, "makes an attention mask of its own"),
    "a window that is not told": (
        "olmo2",
        {"layer_types": ["sliding_attention"] * 3},
        "of layer 0 no window",
    ),
    "two attentions a layer": ("diffllama", {}, r"called attention in layers \[0, 0, 1, 1, 2, 2\] of 3"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_attention_of_another_kind_is_refused_instead_of_ignored(
    case: str, make_folder: Callable[..., Path]
) -> None:
    model_type, changes, reason = UNKNOWN[case]
    with pytest.raises(UnsupportedArchitecture, match=reason):
        _ours(make_folder(model_type, **changes))


def test_positions_that_do_not_start_at_zero_are_refused(make_folder: Callable[..., Path]) -> None:
    """RoBERTa's start behind its padding id, unless they are given."""
    folder = make_folder("roberta", is_decoder=True, intermediate_size=80, num_key_value_heads=4)
    with pytest.raises(UnsupportedArchitecture, match="counts positions in a way of its own"):
        _ours(folder, max_model_len=100)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number from 1"),
        ({"layer_types": [None]}, r"layer_types is \[None\]; it must be a list of texts"),
        ({"attn_logit_softcapping": "high"}, "attn_logit_softcapping is 'high'; it must be a number"),
    ],
    ids=["layers", "layer types", "soft cap"],
)
def test_damaged_sizes_are_named(change: Mapping[str, object], reason: str) -> None:
    config = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", **SHAPE, **change}
    with pytest.raises(ModelFilesError, match=reason):
        outline_spec(config)


def test_a_missing_weight_is_named(make_folder: Callable[..., Path]) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_folder("gpt_neox")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["gpt_neox.layers.1.mlp.dense_4h_to_h.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="dense_4h_to_h"):
        _ours(folder)


def test_the_code_of_a_model_is_never_run(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_folder("gpt_neox")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoModelForCausalLM": "evil.GPTNeoXForCausalLM",
        "AutoConfig": "evil.GPTNeoXConfig",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _ours(folder)
    assert not ran.exists()
