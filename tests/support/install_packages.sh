#!/bin/sh
# Installs the Debian packages that tests need: `servers` (etcd, etcdctl, ip, openssl, curl, prometheus), `browser`
# (chromium), or both.
#
#     sh tests/support/install_packages.sh servers browser
#
# A program that is already there is left alone. Installing needs root and apt-get: where these are missing, missing
# servers are an error; a missing browser is reported only, because the tests of pictures are skipped without it.
set -eu

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install() {
	apt-get update -qq
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

for what in "$@"; do
	case "$what" in
	servers | browser) "install_$what" ;;
	*) echo "install_packages.sh: expected servers or browser, not $what" >&2; exit 2 ;;
	esac
done
