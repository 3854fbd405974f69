#!/bin/sh
# Installs the Debian packages that tests need: `servers` (etcd, etcdctl, ip, openssl, curl, prometheus), `browser`
# (chromium), `shells` (zsh, fish), `redis` (redis-server), or all.
#
#     sh tests/support/install_packages.sh servers browser shells redis
#
# A program that is already there is left alone. Installing needs root and apt-get: where these are missing, missing
# servers are an error; a missing browser, shell or redis is reported only, because its tests are skipped without it.
set -eu

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

is_updated=""
install() {
	[ -n "$is_updated" ] || apt-get update -qq
	is_updated=yes
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# Real etcd servers, network namespaces for the tests of networks, Prometheus with promtool, and what pages call.
install_servers() {
	missing=""
	for pair in etcd:etcd-server etcdctl:etcd-client ip:iproute2 openssl:openssl curl:curl prometheus:prometheus; do
		PATH=/usr/bin:/usr/sbin:/sbin:/bin command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
	done
	[ -n "$missing" ] || return 0
	if ! may_install; then
		echo "the tests need these Debian packages:$missing" >&2
		exit 1
	fi
	install $missing
	# Debian also starts these as services of this machine, on their default ports: the tests must not leave them running.
	for pair in etcd-server:etcd prometheus:prometheus; do
		case "$missing" in *" ${pair%%:*}"*) stop_service "${pair##*:}" ;; esac
	done
}

stop_service() {
	systemctl disable --now "$1" >/dev/null 2>&1 || { service "$1" stop; update-rc.d "$1" disable; } >/dev/null 2>&1 || true
}

install_browser() {
	if command -v chromium >/dev/null; then return 0; fi
	if may_install; then install chromium; else echo "chromium is not installed: the tests of pictures are skipped"; fi
}

# What completes the command line: bash is there.
install_shells() {
	if command -v zsh >/dev/null && command -v fish >/dev/null; then return 0; fi
	if may_install; then install zsh fish; else echo "zsh or fish is not installed: tests of their completion are skipped"; fi
}

# In which Ray's control service keeps its state over a restart.
install_redis() {
	if command -v redis-server >/dev/null; then return 0; fi
	if may_install; then install redis-server; stop_service redis-server; else echo "redis-server is not installed: the test of Ray's restarts is skipped"; fi
}

for what in "$@"; do
	case "$what" in
	servers | browser | shells | redis) "install_$what" ;;
	*) echo "install_packages.sh: expected servers, browser, shells or redis, not $what" >&2; exit 2 ;;
	esac
done
