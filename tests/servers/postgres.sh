#!/usr/bin/env bash
# A throwaway PostgreSQL on 127.0.0.1 for tests.
#
#   postgres.sh start [PORT]   make and start a server in a new temporary folder; prints url=… dir=…
#   postgres.sh restart DIR    stop it as a crash would, start it again
#   postgres.sh stop DIR       stop it and remove the folder
#
# Without PORT a free one is chosen. Debian: apt-get install -y --no-install-recommends postgresql
set -euo pipefail

bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb "$(command -v initdb || true)" 2>/dev/null | sort -V | tail -1)")
if [ ! -x "$bin/initdb" ]; then
  echo "no PostgreSQL server here: apt-get install -y --no-install-recommends postgresql" >&2
  exit 69
fi

as_postgres() { # the server refuses to run as root
  if [ "$(id -u)" = 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi
}

start_server() { # DIR PORT; fsync guards against power loss only, not against kills
  as_postgres "$bin/pg_ctl" -D "$1/data" -w -t 60 -l "$1/log" \
    -o "-c listen_addresses=127.0.0.1 -c port=$2 -c unix_socket_directories=$1 -c max_connections=100 -c fsync=off" start >/dev/null || return 1
  echo "$2" >"$1/port"
}

case "${1:-}" in
start)
  dir=$(mktemp -d /tmp/dpdist-postgres.XXXXXX)
  if [ "$(id -u)" = 0 ]; then chown postgres "$dir"; fi
  as_postgres "$bin/initdb" -D "$dir/data" -A trust -U postgres --no-sync -E UTF8 --locale=C.UTF-8 >/dev/null
  for try in 1 2 3 4 5; do
    port=${2:-$((20000 + RANDOM % 12000))}
    if start_server "$dir" "$port"; then break; fi
    if [ "$try" = 5 ] || [ -n "${2:-}" ]; then cat "$dir/log" >&2; rm -rf "$dir"; exit 1; fi
  done
  echo "url=postgresql+psycopg://postgres@127.0.0.1:$port/postgres dir=$dir"
  ;;
restart)
  port=$(cat "$2/port")
  as_postgres "$bin/pg_ctl" -D "$2/data" -m immediate stop >/dev/null
  start_server "$2" "$port"
  ;;
stop)
  as_postgres "$bin/pg_ctl" -D "$2/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$2"
  ;;
*)
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 64
  ;;
esac
