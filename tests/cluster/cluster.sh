#!/usr/bin/env bash
# A real multi-node Slurm on one Debian 12 machine: slurmctld, slurmdbd on MariaDB, and a slurmd for each node.
#
#   cluster.sh up              install the packages once, start everything, wait until all nodes are idle
#   cluster.sh down            stop all that `up` started; packages and job history stay
#   cluster.sh purge           down, and delete the state
#   cluster.sh with COMMAND    up, run the command, down; a cluster that was up already stays up
#   cluster.sh possible        succeed when `up` can work here, else say why not
#   cluster.sh running         succeed when the controller answers
#   cluster.sh env             what a client needs: eval "$(cluster.sh env)"
#   cluster.sh status          daemons, nodes, queue
#   cluster.sh kill-node N     crash a node: its slurmd and all its tasks die at once
#   cluster.sh start-node N    boot a crashed node and put it back into service
#   cluster.sh controller [LINE]...   start slurmctld anew, with other lines in slurm.conf; without any, as it was
#   cluster.sh wait-node N REGEX [SECONDS]    until the node's short state (idle, alloc, down* ...) matches
#
# A node is one slurmd in PID, UTS and mount namespaces of its own: `hostname` in a task is the node's name, and the
# node dies whole by one kill -9. All nodes share the network; node i has the name mx<i> and the address 127.0.1.<i+1>.
# No systemd, cgroups or containers. About 20 s on a bare machine, 3 s on kept state. A second cluster beside the first
# needs a CLUSTER_ROOT and a CLUSTER_PORT (the first of 100 ports) of its own.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=${CLUSTER_ROOT:-/tmp/qianka-slurm} # short: Unix sockets have at most 108 characters
NODES=${CLUSTER_NODES:-4}
PER_SWITCH=2 # nodes of one leaf switch, a "supernode"
CONTROLLER_PORT=${CLUSTER_PORT:-16800}
DATABASE_DAEMON_PORT=$((CONTROLLER_PORT + 1))
DATABASE_PORT=$((CONTROLLER_PORT + 2))
FIRST_NODE_PORT=$((CONTROLLER_PORT + 10))
MUNGE_SOCKET=$ROOT/run/munge.socket
HOST=$(hostname -s)
PACKAGES="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge slurmdbd slurm-wlm-mysql-plugin mariadb-server"
export SLURM_CONF=$ROOT/etc/slurm.conf
# shellcheck source=daemons.sh
source "$HERE/daemons.sh"

possible() {
  local why=""
  if [ "$(id -u)" != 0 ]; then
    why="it needs root"
  elif ! grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
    why="it needs Debian"
  elif ! unshare --uts --pid --mount --fork true 2>/dev/null; then
    why="this container may not make namespaces"
  fi
  [ -z "$why" ] || { echo "no Slurm cluster can be started here: $why"; return 1; }
}

running() {
  command -v scontrol >/dev/null && [ -e "$SLURM_CONF" ] && timeout 10 scontrol ping 2>/dev/null | grep -q UP
}

up() {
  possible >&2 || exit 1
  ((${#ROOT} <= 80)) || die "CLUSTER_ROOT is too long for Unix sockets: $ROOT"
  mkdir -p "$ROOT"/{etc,run,log,state,spool,mysql}
  chmod 755 "$ROOT" "$ROOT"/{etc,run,log,state}
  local began=$SECONDS i name
  install_packages
  hosts_block add
  render_config
  start_munge
  start_database
  start_database_daemon
  start_controller
  for ((i = 0; i < NODES; i++)); do start_node "mx$i"; done
  wait_for 30 "the nodes to register" sh -c '! sinfo -h -N -p supernode -o %t | grep -qE "unk|\*"'
  # An earlier life may have left nodes down or drained.
  for name in $(sinfo -h -N -p supernode -o '%n %t' | awk '$2 ~ /^(down|drain|drng|fail)/ {print $1}'); do
    scontrol update nodename="$name" state=resume || true
  done
  wait_for 60 "all nodes in service" all_ready
  log "$NODES nodes are up after $((SECONDS - began)) s"
}

down() {
  local file
  if alive "$ROOT/run/slurmctld.pid"; then timeout 10 scancel --quiet -u "$(id -un)" 2>/dev/null || true; fi
  for file in "$ROOT"/run/node-*.pid; do
    if alive "$file"; then kill -9 "$(cat "$file")"; fi
    rm -f "$file"
  done
  stop slurmctld 15
  stop slurmdbd 15
  stop mariadb 20
  stop munged 10
  hosts_block remove
  log "down; the job history stays in $ROOT"
}

with() {
  if running; then exec "$@"; fi
  trap down EXIT
  trap 'exit 130' INT TERM HUP
  up
  "$@"
}

status() {
  local name
  for name in munged mariadb slurmdbd slurmctld; do
    if alive "$ROOT/run/$name.pid"; then echo "$name: up"; else echo "$name: down"; fi
  done
  if running; then
    sinfo -N -o '%8N %.6t %.5c %.8m %.20G %30E'
    squeue
  fi
}

all_ready() {
  [ -n "$(sinfo -h -p supernode)" ] && ! sinfo -h -N -p supernode -o %t | grep -qvxE 'idle|alloc|mix|comp'
}

kill_node() {
  local file=$ROOT/run/node-$1.pid
  alive "$file" || die "node $1 is not running"
  kill -9 "$(cat "$file")"
  rm -f "$file"
}

# slurmd -b reports a fresh boot, so slurmctld sees "Node unexpectedly rebooted", fails over the job that ran there and
# leaves the node down, as on real metal. Then it is resumed, as an administrator would.
boot_node() {
  start_node "$1"
  wait_for 20 "slurmd of $1" sh -c "scontrol show node $1 -o | grep -v NOT_RESPONDING \
    | grep -qE 'State=(IDLE|MIXED|ALLOCATED|COMPLETING)|unexpectedly rebooted'"
  sleep 0.5
  if sinfo -h -n "$1" -o %E | grep -q 'unexpectedly rebooted'; then scontrol update nodename="$1" state=resume; fi
  wait_node "$1" 'idle|mix|alloc' 20
}

# A line takes the place of those of its key; partitions are added.
controller() {
  local line
  stop slurmctld 15
  render_config
  for line in "$@"; do
    [ "${line%%=*}" = PartitionName ] || sed -i "/^${line%%=*}=/d" "$SLURM_CONF"
    echo "$line" >>"$SLURM_CONF"
  done
  start_controller
  wait_for 60 "all nodes in service" all_ready
}

wait_node() {
  wait_for "${3:-60}" "node $1 to be $2" sh -c "sinfo -h -p supernode -n $1 -o %t | grep -qxE '$2'"
}

case "${1:-}" in
  up | down | possible | running | status) "$1" ;;
  with) shift; with "$@" ;;
  purge) down; rm -rf "$ROOT" ;;
  env) echo "export SLURM_CONF='$SLURM_CONF'" ;;
  kill-node) kill_node "$2" ;;
  start-node) boot_node "$2" ;;
  controller) shift; controller "$@" ;;
  wait-node) wait_node "$2" "$3" "${4:-60}" ;;
  node-main) node_main "$2" ;;
  *) sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
