"""What does not leave the host, and what does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trivet.commands.redaction import REMOVED, Redactor, secrets_of
from trivet.config import BackendSettings, Settings

CANARY = "c4n4ry-Zx81"


def test_known_secrets_go_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "token").write_text("home-token-1234\n")
    settings = Settings(
        home=str(tmp_path),
        database_url="postgresql://trivet:p%40ssword@db/x",
        backend={"cuda": BackendSettings(env={"HF_TOKEN": CANARY, "OMP_NUM_THREADS": "16"})},
    )
    redactor = Redactor(secrets_of(settings, {"MY_API_KEY": "key-98765", "PATH": "/usr/bin"}))
    for secret in ("home-token-1234", "p%40ssword", "p@ssword", CANARY, "key-98765"):
        assert redactor.clean(f"a {secret} b") == f"a {REMOVED} b"
    assert redactor.clean("/usr/bin 16") == "/usr/bin 16"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"https://user:{CANARY}@mirror/simple",
        f"HF_TOKEN={CANARY}",
        f'{{"api_key": "{CANARY}"}}',
        f"db password: {CANARY}, next",
        f"key hf_{CANARY}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_unknown_secrets_are_known_by_their_form(text: str) -> None:
    cleaned = Redactor([]).clean(text)
    assert CANARY not in cleaned
    assert REMOVED in cleaned


def test_a_known_secret_goes_from_json_too_where_it_is_written_otherwise() -> None:
    secret = 'pa"ss\\word\n'
    text = msgspec.json.encode({"value": secret}).decode()
    assert Redactor([secret]).clean(text) == f'{{"value":"{REMOVED}"}}'


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=1000000 prompt_tokens: 123456",
        '{"max_tokens": 1000000, "model": "qwen"}',
        "first_token=198 of instance abcd1234",
        "no token was sent; the tokenizer took 0.3 s",
    ],
)
def test_counts_of_tokens_are_no_secrets(text: str) -> None:
    assert Redactor([]).clean(text) == text
