#!/bin/bash
# One agent per machine, over ssh, without any server: the first machine's agent serves the store.
#   ./ssh-loop.sh RUN_ID HOST... -- --nproc-per-node 8 train.py --lr 0.1
# ssh must work without a password, this directory be there on every machine, and meshrun on the PATH that ssh gives.
# Output goes to RUN_ID/HOST.log. Ctrl-C and SIGTERM stop the job: an ssh that is killed would leave its agent running.
set -uo pipefail

usage="ssh-loop.sh RUN_ID HOST... -- [options] SCRIPT [arguments]"
run_id=${1:-}
[ "$#" = 0 ] || shift
hosts=()
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    hosts+=("$1")
    shift
done
if [ "${#hosts[@]}" = 0 ] || [ "$#" -lt 2 ]; then
    echo "$usage" >&2
    exit 2
fi
shift # the --

store=(--rdzv-backend c10d --rdzv-endpoint "${hosts[0]}:29400")
agent=(meshrun "${store[@]}" --rdzv-id "$run_id" --nnodes "${#hosts[@]}" "$@")
# exec: the shell that sshd starts becomes the agent, and does not stand between it and its signals.
remote="cd $(printf %q "$PWD") && exec $(printf '%q ' "${agent[@]}")"

stop() {
    was_told=1
    echo "stopping run $run_id" >&2
    meshctl stop "$run_id" "${store[@]}" >&2 || echo "see $run_id/*.log" >&2
}
trap stop INT TERM

mkdir -p -- "$run_id" || exit
pids=()
for host in "${hosts[@]}"; do
    ssh -n -o BatchMode=yes -o ServerAliveInterval=15 "$host" "$remote" > "$run_id/$host.log" 2>&1 &
    pids+=("$!")
done

# The job's exit code, which is the same on every node that did not leave before; 255 is ssh's own.
code=0
for at in "${!pids[@]}"; do
    was_told=1
    while [ "$was_told" = 1 ]; do # a signal to this script ends a wait too early
        was_told=0 ended=0
        wait "${pids[at]}" || ended=$?
    done
    [ "$ended" = 0 ] || echo "${hosts[at]} ended with $ended: see $run_id/${hosts[at]}.log" >&2
    [ "$code" != 0 ] || code=$ended
done
exit "$code"
