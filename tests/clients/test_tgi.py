"""The `text-generation` package and huggingface_hub's InferenceClient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from huggingface_hub import InferenceClient
from text_generation import Client
from text_generation.errors import ValidationError

if TYPE_CHECKING:
    from conftest import Server

PROMPT = "1, 2, 3, 4,"


FEW = {"max_new_tokens": 4}


def test_hubs_client_reads_text_details_and_tokens(server: Server) -> None:
    client = InferenceClient(f"{server.url}/?model=smol")
    text = client.text_generation(PROMPT, **FEW)
    whole = client.text_generation(PROMPT, details=True, decoder_input_details=True, **FEW)
    assert whole.generated_text == text
    assert (whole.details.finish_reason, len(whole.details.tokens)) == ("length", 4)
    assert len(whole.details.prefill) > 4
    pieces = list(client.text_generation(PROMPT, stream=True, details=True, **FEW))
    assert "".join(piece.token.text for piece in pieces) == text == pieces[-1].generated_text


def test_text_generations_client_reads_both_forms(server: Server) -> None:
    client = Client(f"{server.url}/?model=smol")
    whole = client.generate(PROMPT, **FEW)
    assert whole.details.generated_tokens == 4
    pieces = list(client.generate_stream(PROMPT, **FEW))
    assert pieces[-1].generated_text == whole.generated_text


def test_failures_are_the_clients_own(server: Server) -> None:
    with pytest.raises(ValidationError, match="name one of those deployed"):  # two are
        Client(server.url).generate(PROMPT, **FEW)
