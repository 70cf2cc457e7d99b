# What the launch script does on a worker's host, this one or one behind ssh:
#   sh -c "$(cat worker.sh)" worker KEY COMMAND ...
# KEY names the cluster; its folder there is /tmp/fastdecode-UID/KEY, which only we may
# enter. POSIX sh and util-linux alone, so that an R-worker's host needs no Python.
#
# Each worker NAME has in that folder: NAME.pid (pid, start time, boot id: who it is, so
# that a pid that was dealt again is never mistaken for it), NAME.log, NAME.log.old and,
# when it has ended, NAME.exit. Exit status 255 is ssh's own and never used here.
set -u -f
root=/tmp/fastdecode-$(id -u)
dir=$root/$1
command=$2
shift 2
read -r this_boot < /proc/sys/kernel/random/boot_id

fail() {
  printf '%s\n' "$1" >&2
  exit 3
}

# Refuses a folder that somebody else put there: what it says would be believed.
check_ours() {
  if [ -L "$1" ] || [ ! -d "$1" ] || [ ! -O "$1" ]; then
    fail "$1 on $(uname -n) is not a folder of this user; remove it"
  fi
}

own_folder() {
  for folder in "$root" "$dir"; do
    mkdir -m 700 "$folder" 2> /dev/null
    check_ours "$folder"
    chmod 700 "$folder"
  done
}

# alive NAME: whether the recorded process runs; sets pid. A zombie does not run.
alive() {
  pid=
  { read -r pid start boot < "$dir/$1.pid"; } 2> /dev/null || return 1
  [ "$boot" = "$this_boot" ] || return 1
  { read -r stat < "/proc/$pid/stat"; } 2> /dev/null || return 1
  # shellcheck disable=SC2086 # the fields after the name, from the third on
  set -- ${stat##*) }
  [ "$1" != Z ] && [ "$1" != X ] && [ "${20}" = "$start" ]
}

# ended NAME SECONDS: waits for the end.
ended() {
  tenths=$(($2 * 10))
  while alive "$1"; do
    [ "$tenths" -gt 0 ] || return 1
    tenths=$((tenths - 1))
    sleep 0.1
  done
}

# stop NAME GRACE: SIGTERM, after GRACE seconds SIGKILL. Prints gone, stopped, killed or stuck.
stop() {
  if ! alive "$1"; then
    echo gone
    return
  fi
  kill -TERM "$pid"
  if ended "$1" "$2"; then
    echo stopped
    return
  fi
  kill -KILL "$pid"
  if ended "$1" 5; then echo killed; else echo stuck; fi
}

# Runs a worker, writes down who it is and how it ended. $0 is the path without suffix.
# shellcheck disable=SC2016 # expanded by the inner shell
supervise='
  cd /
  "$@" < /dev/null >> "$0.log" 2>&1 &
  worker=$!
  { read -r stat < "/proc/$worker/stat"; } 2> /dev/null || stat=
  read -r boot < /proc/sys/kernel/random/boot_id
  base=$0
  set -f -- ${stat##*) }
  echo "$worker ${20:-0} $boot" > "$base.pid.new"
  mv -f "$base.pid.new" "$base.pid"
  wait "$worker"
  echo $? > "$base.exit"'

# launch NAME CPUS TIMEOUT SECRET PROGRAM ARGS...: starts a worker and waits for its line.
# CPUS: a list for taskset, or "-". SECRET: "stdin" writes standard input to a file of mode
# 0600 and hands its path over, "-" does nothing. Prints "pid N", then the line "ready ...".
# Exit status: 0 ready, 1 it died, 2 not ready in time, 3 not started.
launch() {
  name=$1 cpus=$2 timeout=$3 secret=$4
  shift 4
  own_folder
  [ -x "$1" ] || fail "$1: no such program on $(uname -n)"
  if [ "$secret" = stdin ]; then
    (umask 077 && cat > "$dir/secret") || fail "$dir/secret on $(uname -n) could not be written"
    set -- "$@" --secret_file "$dir/secret"
  fi
  if alive "$name"; then stop "$name" 5 > /dev/null; fi
  if [ -e "$dir/$name.log" ]; then mv -f "$dir/$name.log" "$dir/$name.log.old"; fi
  rm -f "$dir/$name.pid" "$dir/$name.exit"
  : > "$dir/$name.log" || fail "$dir/$name.log on $(uname -n) could not be written"
  [ "$cpus" = - ] || set -- taskset -c "$cpus" "$@"
  setsid sh -c "$supervise" "$dir/$name" "$@" < /dev/null > /dev/null 2>&1 &
  until [ -e "$dir/$name.pid" ]; do sleep 0.05; done
  read -r pid start boot < "$dir/$name.pid"
  echo "pid $pid"

  deadline=$(($(date +%s) + timeout))
  while :; do
    if alive "$name"; then running=yes; else running=no; fi
    grep -m 1 '^ready ' "$dir/$name.log" && return 0
    [ $running = yes ] || return 1
    [ "$(date +%s)" -lt "$deadline" ] || return 2
    sleep 0.1
  done
}

# state NAME...: a line each, "NAME alive PID" or "NAME dead STATUS" ("-": not known).
state() {
  for name in "$@"; do
    if alive "$name"; then
      echo "$name alive $pid"
    else
      [ -e "$dir/$name.exit" ] || sleep 0.2 # its last words are on their way
      { read -r status < "$dir/$name.exit"; } 2> /dev/null || status=-
      echo "$name dead $status"
    fi
  done
}

# What the deal of CPUs needs to know of this host.
probe() {
  echo "boot $this_boot"
  sed -n 's/^Cpus_allowed_list:/allowed/p' /proc/self/status
  for folder in "$(sed -n 's/^0:://p' /proc/self/cgroup)" ""; do
    { read -r quota period < "/sys/fs/cgroup$folder/cpu.max"; } 2> /dev/null || continue
    echo "quota $quota $period"
  done
  set +f
  for list in /sys/devices/system/node/node*/cpulist; do
    [ -r "$list" ] && echo "node $(cat "$list")"
  done
  cat /sys/devices/system/cpu/cpu*/topology/thread_siblings_list 2> /dev/null | sort -u | sed 's/^/core /'
}

if [ -e "$root" ] || [ -L "$root" ]; then check_ours "$root"; fi
case $command in
  probe) probe ;;
  launch) launch "$@" ;;
  stop) stop "$@" ;;
  state) state "$@" ;;
  watch) # NAME...: their states, once a second, until nobody listens
    while state "$@"; do sleep 1; done ;;
  tail) # NAME LINES
    tail -n "$2" "$dir/$1.log" ;;
  follow) # NAME LINES
    exec tail -n "$2" -F "$dir/$1.log" ;;
  clean) rm -rf "$dir" ;;
  *) fail "worker.sh: unknown command $command" ;;
esac
