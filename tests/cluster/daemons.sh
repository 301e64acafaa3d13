# The parts of cluster.sh: packages, config files, daemons. It is sourced there and runs nothing by itself.

log() { printf '[cluster %(%H:%M:%S)T] %s\n' -1 "$*" >&2; }

die() {
  log "ERROR: $*"
  exit 1
}

# wait_for SECONDS WHAT COMMAND...: poll until the command succeeds, else show its last words.
wait_for() {
  local end=$((SECONDS + $1)) seconds=$1 what=$2 said
  shift 2
  until said=$("$@" 2>&1); do
    ((SECONDS < end)) || die "timed out after $seconds s waiting for $what: $said"
    sleep 0.1
  done
}

# alive PIDFILE: the process runs and is ours. A stale file must never make us signal a stranger, so the process has to
# carry this cluster's SLURM_CONF. (kill -0 would also say yes to a zombie.)
alive() {
  [ -s "$1" ] && tr '\0' '\n' 2>/dev/null <"/proc/$(cat "$1")/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF"
}

# stop NAME SECONDS: TERM, wait, KILL.
stop() {
  local file=$ROOT/run/$1.pid pid i
  if alive "$file"; then
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || true
    for ((i = 0; i < $2 * 10; i++)); do
      alive "$file" || break
      sleep 0.1
    done
    if alive "$file"; then kill -9 "$pid"; fi
  fi
  rm -f "$file"
}

install_packages() {
  local name missing="" policy=/usr/sbin/policy-rc.d ours=no
  for name in $PACKAGES; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $name"
  done
  [ -n "$missing" ] || return 0
  log "installing:$missing"
  # Debian's packages start system services; a policy that exits with 101 prevents it.
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    ours=yes
  fi
  apt-get -qq update
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >"$ROOT/log/apt.log" 2>&1 || {
    tail -20 "$ROOT/log/apt.log" >&2
    [ $ours = no ] || rm -f $policy
    die "apt-get install failed"
  }
  [ $ours = no ] || rm -f $policy
}

# The nodes' names in /etc/hosts, so that the first host of a job can be connected to by its name. The file is
# rewritten in place because in a container it is a mount.
hosts_block() {
  local i kept
  kept=$(sed "\|# BEGIN $ROOT$|,\|# END $ROOT$|d" /etc/hosts)
  {
    echo "$kept"
    if [ "$1" = add ]; then
      echo "# BEGIN $ROOT"
      for ((i = 0; i < NODES; i++)); do echo "127.0.1.$((i + 1)) mx$i"; done
      echo "# END $ROOT"
    fi
  } >/etc/hosts
}

render_config() {
  local i key text lines=""
  for ((i = 0; i < NODES; i++)); do
    lines+="NodeName=mx$i NodeHostname=mx$i NodeAddr=127.0.1.$((i + 1)) Port=$((FIRST_NODE_PORT + i))"$'\n'
  done
  text=$(<"$HERE/slurm.conf.in")
  for key in HOST CONTROLLER_PORT MUNGE_SOCKET ROOT DATABASE_DAEMON_PORT; do text=${text//@$key@/${!key}}; done
  printf '%s\n' "${text//@NODES@/$lines}" >"$SLURM_CONF"
  render_topology >"$ROOT/etc/topology.conf"
  # Slurm hands out indices (CUDA_VISIBLE_DEVICES) only for device nodes, so the cards are aliases of /dev/null.
  mkdir -p "$ROOT/dev"
  for ((i = 0; i < 8; i++)); do [ -c "$ROOT/dev/card$i" ] || mknod -m 666 "$ROOT/dev/card$i" c 1 3; done
  echo "NodeName=mx[0-$((NODES - 1))] Name=gpu File=$ROOT/dev/card[0-7]" >"$ROOT/etc/gres.conf"
  # slurmd reads cgroup.conf even with proctrack/linuxproc; this keeps it off the machine's cgroups.
  printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$ROOT/etc/cgroup.conf"
}

# Supernodes are leaf switches under one spine.
render_topology() {
  local i last switch=0
  for ((i = 0; i < NODES; i += PER_SWITCH)); do
    last=$((i + PER_SWITCH - 1 < NODES ? i + PER_SWITCH - 1 : NODES - 1))
    echo "SwitchName=sn$switch Nodes=mx[$i-$last]"
    switch=$((switch + 1))
  done
  echo "SwitchName=spine Switches=sn[0-$((switch - 1))]"
}

# A munge of our own. --force because the socket may live below the world-writable /tmp.
start_munge() {
  [ -S "$MUNGE_SOCKET" ] && munge -S "$MUNGE_SOCKET" -n >/dev/null 2>&1 && return 0
  [ -s "$ROOT/etc/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$ROOT/etc/munge.key")
  munged --force --key-file="$ROOT/etc/munge.key" --socket="$MUNGE_SOCKET" --pid-file="$ROOT/run/munged.pid" \
    --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/run/munge.seed" --num-threads=4 2>>"$ROOT/log/munged.err"
  wait_for 10 munge munge -S "$MUNGE_SOCKET" -n
}

start_database() {
  alive "$ROOT/run/mariadb.pid" && return 0
  if [ ! -d "$ROOT/mysql/mysql" ]; then
    mariadb-install-db --no-defaults --user=mysql --datadir="$ROOT/mysql" --auth-root-authentication-method=socket \
      --skip-test-db >"$ROOT/log/mariadb-install.log" 2>&1 || die "see $ROOT/log/mariadb-install.log"
  fi
  # --init-file wants one statement a line.
  cat >"$ROOT/etc/init.sql" <<SQL
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
SQL
  chown mysql "$ROOT/mysql"
  chmod 644 "$ROOT/etc/init.sql"
  setsid mariadbd --no-defaults --user=mysql --datadir="$ROOT/mysql" --socket="$ROOT/mysql/mysqld.sock" \
    --pid-file="$ROOT/mysql/mariadbd.pid" --bind-address=127.0.0.1 --port=$DATABASE_PORT \
    --init-file="$ROOT/etc/init.sql" --skip-name-resolve --performance-schema=off --skip-log-bin \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \
    --innodb-doublewrite=0 --max-allowed-packet=16M </dev/null >"$ROOT/log/mariadb.log" 2>&1 &
  echo $! >"$ROOT/run/mariadb.pid"
  disown
  wait_for 60 mariadb mariadb-admin --no-defaults -h127.0.0.1 -P$DATABASE_PORT -uslurm -pslurm ping
}

start_database_daemon() {
  alive "$ROOT/run/slurmdbd.pid" && return 0
  # slurmdbd refuses a file that others may read.
  (umask 077 && cat >"$ROOT/etc/slurmdbd.conf") <<CONF
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
DbdHost=$HOST
DbdAddr=127.0.0.1
DbdPort=$DATABASE_DAEMON_PORT
SlurmUser=root
DebugLevel=info
LogFile=$ROOT/log/slurmdbd.log
PidFile=$ROOT/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DATABASE_PORT
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CONF
  slurmdbd
  wait_for 60 slurmdbd sacctmgr -n -i list cluster
}

start_controller() {
  alive "$ROOT/run/slurmctld.pid" && return 0
  slurmctld
  wait_for 30 slurmctld sh -c 'scontrol ping | grep -q UP'
}

# setsid and closed stdio: a node must not hold the caller's terminal or pipes. --kill-child: killing unshare kills
# the namespace's init, and with it the whole node.
start_node() {
  alive "$ROOT/run/node-$1.pid" && return 0
  setsid unshare --uts --pid --mount --fork --mount-proc --kill-child=KILL \
    bash "$HERE/cluster.sh" node-main "$1" </dev/null >>"$ROOT/log/node-$1.out" 2>&1 &
  echo $! >"$ROOT/run/node-$1.pid"
  disown
}

# PID 1 of a node: it starts slurmd, reaps orphans, and ends only by SIGKILL from outside.
node_main() {
  hostname "$1"
  mkdir -p "$ROOT/spool/$1"
  trap : TERM INT HUP
  slurmd -b -N "$1"
  while :; do
    sleep 1000 &
    wait
  done
}
