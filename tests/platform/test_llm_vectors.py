"""`LLM.embed` and `LLM.score`, on the null backend; real numbers come from the backends' tests."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trivet import LLM
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.demo_model import find_demo_model
from trivet.errors import ContextLengthExceeded, RequestError
from trivet_null.model import NullModel


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), backend="null", max_num_waiting=4) as llm:
        yield llm


def hidden_of(llm: LLM, prompt: str) -> np.ndarray:
    spec = llm.engine.files.spec
    assert spec is not None
    ids = llm.get_tokenizer().encode(prompt)
    return NullModel(spec.num_tokens).hidden_after_each(ids, spec.hidden_size)


def test_vectors_stand_in_the_texts_order_and_have_length_one(llm: LLM) -> None:
    texts = [f"text {n}" for n in range(9)]  # more than may wait
    outputs = llm.embed(texts, use_tqdm=False)
    assert [output.prompt for output in outputs] == texts
    for text, output in zip(texts, outputs, strict=True):
        assert output.finished
        last = hidden_of(llm, text)[-1]
        np.testing.assert_allclose(output.outputs.embedding, last / np.linalg.norm(last), atol=1e-6)
    assert outputs[0].outputs.hidden_size == 576


def test_a_plain_mean_of_fewer_dimensions(llm: LLM) -> None:
    (output,) = llm.embed("Hello, world", pooling="mean", normalize=False, dimensions=5, use_tqdm=False)
    wanted = hidden_of(llm, "Hello, world").mean(axis=0)[:5]
    np.testing.assert_allclose(output.outputs.embedding, wanted, atol=1e-5)


def test_the_model_s_own_pooling_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(make_tiny_model("qwen3", tmp_path / "made"), folder)
    vocabulary = {f"t{n}": n for n in range(160)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "modules.json").write_text(
        json.dumps([{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    with LLM(folder, backend="null") as llm:
        own, mean, last = (
            llm.embed("t5 t6 t7", pooling=pooling, use_tqdm=False)[0].outputs.embedding
            for pooling in (None, "mean", "last")
        )
    assert own == mean
    assert own != last


def test_texts_that_cannot_run_are_refused_before_anything_runs(llm: LLM) -> None:
    context = llm.engine.core.max_model_len
    assert llm.embed([[7] * context], use_tqdm=False)[0].finished
    with pytest.raises(ContextLengthExceeded, match=f"has {context + 1} tokens"):
        llm.embed([[7], [7] * (context + 1)], use_tqdm=False)
    with pytest.raises(RequestError, match="dimensions is 577"):
        llm.embed("x", dimensions=577)
    assert not llm.engine.core.has_work


def test_a_score_is_the_share_of_yes_against_no(llm: LLM) -> None:
    tokenizer, spec = llm.get_tokenizer(), llm.engine.files.spec
    assert spec is not None
    yes, no = (tokenizer.encode(word)[0] for word in ("yes", "no"))
    outputs = llm.score("What?", [f"That {n}." for n in range(7)], use_tqdm=False)
    for output in outputs:
        logits = NullModel(spec.num_tokens).logits_after_each(output.prompt_token_ids)[-1]
        wanted = math.exp(logits[yes]) / (math.exp(logits[yes]) + math.exp(logits[no]))
        assert output.outputs.score == pytest.approx(wanted, rel=1e-4)
    assert len({output.outputs.score for output in outputs}) == 7


def test_words_and_ids_of_the_answer_and_the_template_may_be_others(llm: LLM) -> None:
    template = "Q: {query} D: {document} A:"
    first = llm.score("a", "b", template=template, score_tokens=("no", "yes"), use_tqdm=False)[0]
    ids = tuple(llm.get_tokenizer().encode(word)[0] for word in ("yes", "no"))
    second = llm.score("a", "b", template=template, score_token_ids=ids, use_tqdm=False)[0]
    assert first.outputs.score == pytest.approx(1 - second.outputs.score)
    assert first.prompt_token_ids == llm.get_tokenizer().encode("Q: a D: b A:")


def test_queries_go_with_documents_one_to_many_or_pair_by_pair(llm: LLM) -> None:
    single = [llm.score(q, d, use_tqdm=False)[0].outputs.score for q, d in (("a", "x"), ("b", "y"))]
    pairs = [output.outputs.score for output in llm.score(["a", "b"], ["x", "y"], use_tqdm=False)]
    assert pairs == single
    with pytest.raises(RequestError, match="text_1 has 2 texts and text_2 3"):
        llm.score(["a", "b"], ["x", "y", "z"])
