"""What `trivet doctor` says about the parts that belong together, and about the usual errors."""

from __future__ import annotations

import pytest

from trivet_ascend.explanations import CURES, cure_for
from trivet_ascend.pairing import advices

DRIVER = {"driver": "25.2.0", "firmware": "7.7.0"}


def said(found: dict[str, str], torch_npu: str | None) -> list[tuple[str, str, str]]:
    return [(each.status, each.text, each.cure) for each in advices(found, torch_npu)]


def test_a_sound_host_is_said_to_be_so() -> None:
    lines = said({**DRIVER, "cann": "9.1.0"}, "2.14.0")
    assert [status for status, _, _ in lines] == ["ok", "ok"]
    assert "driver 25.2.0, firmware 7.7.0, cann 9.1.0" in lines[0][1]
    assert "made for 9.1.0" in lines[1][1]


@pytest.mark.parametrize(
    ("found", "torch_npu", "status", "words"),
    [
        (DRIVER, "2.14.0", "fail", "set_env.sh"),
        ({"cann": "9.1.0"}, "2.14.0", "warn", "driver/version.info"),
        ({**DRIVER, "cann": "9.1.0"}, None, "warn", "backend.ascend"),
        ({**DRIVER, "cann": "8.3.RC1"}, "2.10.0.post4", "fail", "CANN 8.5.0 or newer"),
        ({**DRIVER, "cann": "8.5.RC1"}, "2.10.0", "fail", "CANN 8.5.0"),
        ({**DRIVER, "cann": "9.0.1"}, "2.14.0", "fail", "CANN 9.1.0"),
        ({**DRIVER, "cann": "9.1.0"}, "2.13.0", "ok", ""),
    ],
)
def test_a_missing_or_wrong_part_is_named_with_its_cure(
    found: dict[str, str], torch_npu: str | None, status: str, words: str
) -> None:
    lines = said(found, torch_npu)
    assert any(given == status and words in cure for given, _, cure in lines), lines


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("ImportError: libhccl.so: cannot open shared object file", "ascend-toolkit/set_env.sh"),
        ("libatb.so: cannot open", "nnal/atb/set_env.sh"),
        (
            "Two accelerators cannot be used at the same time in PyTorch: npu and cuda",
            "environment of its own",
        ),
        ("aclnnRmsNorm or aclnnRmsNormGetWorkspaceSize not in libopapi.so", "older than torch-npu expects"),
        ("call aclnnFusedInferAttentionScoreV3 failed, error code is 561002", "options.attention=gather"),
        ("EZ1001: dtype DT_BFLOAT16", "bfloat16"),
        ("AclSetCompileopt(...) 500001", "kernels package"),
        ("error code is 207008", "options.graphs=off"),
        ("dcmi module initialize failed. ret is -8005", "another container"),
        ("EI0006: Getting socket times out", "HCCL_CONNECT_TIMEOUT"),
        ("Cannot re-initialize NPU in forked subprocess", "spawned"),
    ],
)
def test_an_error_text_leads_to_its_cure(text: str, cure: str) -> None:
    assert cure in cure_for(text)


def test_an_unknown_error_gets_no_advice() -> None:
    assert cure_for("something else") == ""
    assert all(cure for _, cure in CURES)
