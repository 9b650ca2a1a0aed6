#!/usr/bin/env bash
# Builds the image without a daemon and without pulling images, inspects its contents and runs it (make test-image). The
# last stage is that of the Dockerfile; the output of the first stage is built on this machine. It needs root, for
# chroot.
set -euo pipefail
cd "$(dirname "$0")/../.."
deploy/docker/setup.sh

WORK=$(mktemp -d)
readonly WORK ROOT="$WORK/root"
readonly REDIS_PORT=16399 API=127.0.0.1:17070 ADMIN=127.0.0.1:17071
build() { buildah --root "$WORK/storage" --runroot "$WORK/run" --storage-driver vfs "$@"; }
pids=()
tidy_up() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    if mountpoint -q "$ROOT"; then umount "$ROOT/proc" "$ROOT"; fi
    rm -rf "$WORK"
}
trap tidy_up EXIT
fail() {
    echo "test-image: $*" >&2
    exit 1
}

cargo build --locked --profile dist --package leasehold-server --package leasehold-cli --bins
mkdir -p "$WORK/context/image"
deploy/docker/root.sh "${CARGO_TARGET_DIR:-target}/dist" "$WORK/context/image"
# Extracts the last stage of the Dockerfile, and replaces the earlier stage by a folder.
sed -n '/^FROM scratch/,$p' deploy/docker/Dockerfile | sed 's/^COPY --from=build \/image \/$/COPY image \//' >"$WORK/Dockerfile"
grep -q '^COPY image /$' "$WORK/Dockerfile" || fail "the Dockerfile has another last stage"
build build --quiet --isolation chroot --pull-never --timestamp 0 --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" \
    --file "$WORK/Dockerfile" --tag leasehold "$WORK/context" >/dev/null
build push --quiet leasehold "oci-archive:$WORK/leasehold.tar"

echo "--- what it has"
container=$(build from leasehold)
mounted=$(build mount "$container")
cp -a "$mounted" "$ROOT"
(cd "$ROOT" && find . -type f -printf '%P %s\n' | sort) | tee "$WORK/files"
files=$(cut -d' ' -f1 "$WORK/files")
expected='etc/group
etc/passwd
etc/ssl/certs/ca-certificates.crt
usr/local/bin/leasehold
usr/local/bin/leasehold-server
usr/share/sbom/leasehold.spdx.json'
libraries=$(grep -E '(^|/)(lib[a-z_]+\.so\.[0-9]+|ld-linux[-a-z0-9_]*\.so\.[0-9]+)$' <<<"$files")
[[ "$(sort <<<"$expected"$'\n'"$libraries")" == "$(sort <<<"$files")" ]] || fail "other files than those"
[[ $(wc -l <<<"$libraries") -le 5 ]] || fail "more libraries than C programs load: $libraries"
[[ -z $(find "$ROOT" -perm /6000) ]] || fail "a file with another's rights"
unpacked=$(awk '{sum += $2} END {print sum}' "$WORK/files")
packed=$(stat -c %s "$WORK/leasehold.tar")
echo "unpacked $unpacked bytes, packed $packed bytes"
((unpacked < 25000000)) || fail "larger than 25 MB"

echo "--- what it says of itself"
build inspect --type image leasehold >"$WORK/inspect.json"
python3 - "$WORK/inspect.json" <<'PYTHON'
import json, sys

config = json.load(open(sys.argv[1]))["OCIv1"]["config"]
assert config["User"] == "65532:65532", config
assert config["Entrypoint"] == ["/usr/local/bin/leasehold-server"], config
command = ["dev", "--listen", "0.0.0.0:7070", "--admin-listen", "0.0.0.0:7071", "--insecure"]
assert config["Cmd"] == command, config
labels = {key.rsplit(".", 1)[1] for key in config["Labels"] if key.startswith("org.opencontainers.image.")}
assert labels >= {"title", "description", "version", "revision", "source", "documentation", "licenses"}, labels
print(f"{len(labels)} labels")
PYTHON
deploy/docker/check_sbom.py "$ROOT"
# The SBOM must reject a library that belongs to no package.
cp -a "$WORK/context/image" "$WORK/unknown"
touch "$WORK/unknown/usr/lib-of-nobody.so.1"
if deploy/docker/sbom.py "$WORK/unknown" >/dev/null 2>"$WORK/unnamed"; then fail "a file of no package is in the SBOM"; fi
grep -q '/usr/lib-of-nobody.so.1 is of no Debian package' "$WORK/unnamed" || fail "$(cat "$WORK/unnamed")"

echo "--- what it does"
# The conditions are those of a pod: a read-only root file system and an unprivileged user.
mkdir "$ROOT/proc"
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -o remount,bind,ro "$ROOT"
in_image() { chroot --userspec=65532:65532 "$ROOT" "$@"; }
redis-server --port "$REDIS_PORT" --bind 127.0.0.1 --save '' --maxmemory-policy noeviction >"$WORK/redis.log" &
pids+=($!)
readonly STORE="redis://127.0.0.1:$REDIS_PORT/0"
until redis-cli -p "$REDIS_PORT" ping >/dev/null 2>&1; do sleep 0.1; done
in_image /usr/local/bin/leasehold-server init-store --store "$STORE"
# This is not a shell function, because the pid must be that of the broker.
chroot --userspec=65532:65532 "$ROOT" /usr/local/bin/leasehold-server serve --store "$STORE" --listen "$API" \
    --admin-listen "$ADMIN" >"$WORK/broker.log" 2>&1 &
broker=$!
pids+=("$broker")
leasehold() { in_image /usr/local/bin/leasehold --endpoint "http://$API" "$@"; }
until leasehold ping --service readiness; do
    kill -0 "$broker" 2>/dev/null || fail "$(cat "$WORK/broker.log")"
    sleep 0.1
done
lease=$(leasehold acquire smoke --no-wait --ttl 30s)
code=0
leasehold acquire smoke --no-wait >/dev/null 2>"$WORK/refused" || code=$?
((code == 124)) || fail "the second holder got $code: $(cat "$WORK/refused")"
lease=$(leasehold renew <<<"$lease")
leasehold release <<<"$lease"
leasehold run smoke --no-wait -- /usr/local/bin/leasehold version
code=0
in_image /bin/sh -c true 2>/dev/null || code=$?
((code == 127)) || fail "there is a shell"
kill -TERM "$broker"
code=0
wait "$broker" || code=$?
((code == 0)) || fail "the broker ended with $code: $(cat "$WORK/broker.log")"

echo "--- what it does without arguments"
mapfile -t command < <(python3 -c 'import json, sys
print(*json.load(open(sys.argv[1]))["OCIv1"]["config"]["Cmd"], sep="\n")' "$WORK/inspect.json")
chroot --userspec=65532:65532 "$ROOT" /usr/local/bin/leasehold-server "${command[@]}" >"$WORK/dev.log" 2>&1 &
dev=$!
pids+=("$dev")
until in_image /usr/local/bin/leasehold ping --service readiness; do
    kill -0 "$dev" 2>/dev/null || fail "$(cat "$WORK/dev.log")"
    sleep 0.1
done
in_image /usr/local/bin/leasehold run smoke --no-wait -- /usr/local/bin/leasehold version
kill -INT "$dev"
code=0
wait "$dev" || code=$?
((code == 0)) || fail "without arguments the broker ended with $code: $(cat "$WORK/dev.log")"
echo "test-image: passed"
