"""The usual errors of CANN, torch-npu and HCCL, and what cures them; all met by others and public."""

from __future__ import annotations

import re

# Pattern in the text -> cure. The first that matches counts.
CURES: tuple[tuple[str, str], ...] = (
    (r"libhccl\.so|libascendcl\.so|libacl_op_compiler\.so|libge_runner\.so|libgraph\.so",
     "CANN is not on the library path: `source /usr/local/Ascend/ascend-toolkit/set_env.sh` first, "
     "or put its LD_LIBRARY_PATH into [backend.ascend] env"),
    (r"libatb\.so", "NNAL is missing or not on the path: `source /usr/local/Ascend/nnal/atb/set_env.sh`"),
    (r"Two accelerators cannot be used",
     "this environment's torch sees a CUDA GPU; give Ascend an environment of its own with the CPU build of "
     "torch and torch-npu, and name its python in [backend.ascend]"),
    (r"No module named 'torch_npu'",
     "install torch-npu of torch's version into the Ascend environment: pip install 'trivet[ascend]'"),
    (r"undefined symbol|GLIBCXX",
     "torch and torch-npu are of different builds: both need the same version, such as 2.13.0"),
    (r"not in libopapi\.so|Failed to find function",
     "this CANN is older than torch-npu expects; `trivet doctor` prints both, install the pair that belongs "
     "together"),
    (r"500001|AclSetCompileopt", "the kernels package is not that of this CANN: install both of one release"),
    (r"Cannot re-initialize NPU in forked subprocess", "processes must be spawned, never forked"),
    (r"561002", "the attention operation of this CANN refuses the head size; set options.attention=gather"),
    (r"161002|EZ1001", "an operation refuses an argument's type; 910A and 310P have no bfloat16"),
    (r"207008|207005|Alloc sq cq fail",
     "the device has no streams left for graphs: options.graphs=off, or a newer driver (HDK 25.5.1 on)"),
    (r"107030", "something synchronised while a graph was captured: options.graphs=off"),
    (r"207001|out of memory", "lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"),
    (r"-8005|-8020", "another container holds this device, or /usr/local/dcmi is not mounted"),
    (r"EI0006|socket timeout",
     "the ranks did not find each other in time: same network for all, HCCL_IF_IP or HCCL_SOCKET_IFNAME, "
     "HCCL_CONNECT_TIMEOUT=600"),
    (r"EI0014", "mount /etc/hccl_rootinfo.json into the container, except on A5"),
    (r"507\d{3}", "the device reported a fault; `npu-smi info -t health` and /var/log/npu tell more"),
)  # fmt: skip


def cure_for(text: str) -> str:
    """ "; " and what to do about an error of this text; empty where nothing is known."""
    for pattern, cure in CURES:
        if re.search(pattern, text):
            return f"; {cure}"
    return ""
