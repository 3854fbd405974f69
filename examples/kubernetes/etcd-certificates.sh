#!/bin/bash
# Makes an authority, a certificate for the members of etcd.yaml and one for the jobs that use it, in a directory, and
# says how they become Secrets. Where cert-manager is at hand let it do this: with the same names, and renewals.
#   ./etcd-certificates.sh DIRECTORY [NAMESPACE]
set -euo pipefail

directory=${1:?a directory for the files}
namespace=${2:-training}
days=3650
umask 077
mkdir -p "$directory"
cd "$directory"
if [ -e ca.key ]; then
    echo "$directory holds an authority already" >&2
    exit 1
fi

# Members name each other as etcd-N.etcd, and look up the name of whoever connects: that is the long one.
names=DNS:etcd-client,DNS:etcd-client.$namespace.svc,DNS:localhost,IP:127.0.0.1
for member in etcd-0 etcd-1 etcd-2; do
    names+=,DNS:$member.etcd,DNS:$member.etcd.$namespace.svc,DNS:$member.etcd.$namespace.svc.cluster.local
done

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days "$days" -subj "/CN=etcd for jobs" \
    -keyout ca.key -out ca.crt 2>/dev/null

# sign NAME USAGE [NAMES]
sign() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'extendedKeyUsage=%s\n%s\n' "$2" "${3:+subjectAltName=$3}" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" \
        -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}
sign server serverAuth,clientAuth "$names" # members are clients of each other
sign client clientAuth

for who in server client; do
    printf '%q ' kubectl --namespace "$namespace" create secret generic "etcd-$who-tls" \
        "--from-file=ca.crt=$PWD/ca.crt" "--from-file=tls.crt=$PWD/$who.crt" "--from-file=tls.key=$PWD/$who.key"
    echo
done
echo "# $PWD/ca.key signs further certificates: keep it where nobody else reads it"
