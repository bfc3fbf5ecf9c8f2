#!/usr/bin/env bash
# A throwaway S3 server on 127.0.0.1 for tests: the Ceph RADOS gateway with one monitor and one store in memory.
#
#   ceph.sh start [PORT]   make and start a server in a new temporary folder; prints endpoint=… key=… secret=… dir=…
#   ceph.sh stop DIR       stop it and remove the folder
#
# Without PORT a free one is chosen. Debian: apt-get install -y --no-install-recommends ceph-mon ceph-osd radosgw ceph-common
set -euo pipefail

for program in ceph ceph-mon ceph-osd radosgw radosgw-admin ceph-authtool monmaptool; do
  if ! command -v "$program" >/dev/null; then
    echo "no Ceph here: apt-get install -y --no-install-recommends ceph-mon ceph-osd radosgw ceph-common" >&2
    exit 69
  fi
done

stop_server() { # DIR
  for daemon in radosgw osd mon; do
    if [ -s "$1/run/$daemon.pid" ]; then kill -9 "$(cat "$1/run/$daemon.pid")" 2>/dev/null || true; fi
  done
  rm -rf "$1"
}

free_port() { # of those this system does not hand out by itself
  while :; do
    local port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
}

daemon() { # DIR NAME COMMAND...
  local dir=$1 name=$2
  shift 2
  setsid "$@" >"$dir/log/$name.out" 2>&1 </dev/null &
  echo $! >"$dir/run/$name.pid"
}

wait_for() { # SECONDS COMMAND...
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then echo "no answer: $*" >&2; return 1; fi
    sleep 0.2
  done
}

start_server() { # DIR PORT
  local dir=$1 port=$2 conf="$1/ceph.conf" messenger caps
  messenger=$(free_port)
  mkdir -p "$dir"/{mon,osd,rgw,run,log}
  cat >"$conf" <<EOF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$messenger/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
run dir = $dir/run
crash dir = $dir/run
admin socket = $dir/run/\$name.asok
log file = $dir/log/\$name.log
keyring = $dir/keyring
[mon]
mon data = $dir/mon
mon data avail crit = 1
[osd]
osd data = $dir/osd
osd objectstore = memstore
memstore device bytes = 4294967296
[client]
rgw data = $dir/rgw
rgw dynamic resharding = false
rgw gc max objs = 1
rgw lc max objs = 1
EOF
  ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  caps=(--cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *')
  for name in client.admin client.rgw.a osd.0; do
    ceph-authtool "$dir/keyring" --gen-key -n "$name" "${caps[@]}" >/dev/null
  done
  monmaptool --create --clobber --fsid "$(sed -n 's/^fsid = //p' "$conf")" --addv a "[v2:127.0.0.1:$messenger]" \
    "$dir/monmap" >/dev/null
  ceph-mon -c "$conf" --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring" >"$dir/log/mkfs.log" 2>&1
  daemon "$dir" mon ceph-mon -c "$conf" -f -i a
  local osd
  osd=$(cat /proc/sys/kernel/random/uuid)
  timeout 60 ceph -c "$conf" --connect-timeout 30 osd new "$osd" >/dev/null
  ceph-osd -c "$conf" --mkfs -i 0 --osd-uuid "$osd" >>"$dir/log/mkfs.log" 2>&1
  daemon "$dir" osd ceph-osd -c "$conf" -f -i 0
  wait_for 60 bash -c "ceph -c '$conf' osd stat | grep -q '1 up'"
  daemon "$dir" radosgw radosgw -c "$conf" -f -n client.rgw.a --rgw-frontends "beast endpoint=127.0.0.1:$port tcp_nodelay=1"
  wait_for 90 curl -sf "http://127.0.0.1:$port/"
  local key secret
  key=$(od -An -N10 -tx1 /dev/urandom | tr -d ' \n')
  secret=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
  radosgw-admin -c "$conf" user create --uid=dpdist --display-name=dpdist --access-key="$key" --secret-key="$secret" \
    >/dev/null 2>"$dir/log/admin.err"
  echo "endpoint=http://127.0.0.1:$port key=$key secret=$secret dir=$dir"
}

case "${1:-}" in
start)
  dir=$(mktemp -d /tmp/dpdist-ceph.XXXXXX)
  if ! start_server "$dir" "${2:-$(free_port)}"; then
    tail -n 20 "$dir"/log/* >&2
    stop_server "$dir"
    exit 1
  fi
  ;;
stop)
  stop_server "$2"
  ;;
*)
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 64
  ;;
esac
