#!/bin/bash
# Runs a command with the variables of CANN, without which torch-npu cannot be imported.
for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
    # shellcheck disable=SC1090  # of the base image
    if [ -r "$script" ]; then . "$script"; fi
done
export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$@"
