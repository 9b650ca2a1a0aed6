#!/usr/bin/env bash
# Builds the peers of the benchmark, and etcd and ZooKeeper, from packages of their languages' registries, once for each
# version of these files. Prints the folder with the result: bin/etcd, bin/go, bin/node, classpath (of Java, with
# ZooKeeper's server), node, python, versions.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh
readonly REDIS_PY=8.1.0

DIR="$CACHE/peers-$(find . -type f -not -path '*/node_modules/*' | sort | xargs cat | cksum | cut -d' ' -f1)"
readonly DIR
build_peers() {
    rm -rf "$DIR"
    mkdir -p "$DIR/bin"
    (
        go_bin="$(../../client-sdk/go/setup.sh path)"
        cd go
        "$go_bin/go" build -o "$DIR/bin/go" .
        "$go_bin/go" build -o "$DIR/bin/etcd" go.etcd.io/etcd/server/v3
    ) >&2
    cp -r java "$DIR"
    (
        cd "$DIR/java"
        mvn -B -ntp -q package dependency:build-classpath -Dmdep.outputFile=target/dependencies
        printf '%s:%s' "$PWD/target/peers-0.1.0.jar" "$(<target/dependencies)" >"$DIR/classpath"
    ) >&2
    mkdir -p "$DIR/node"
    cp node/package.json node/package-lock.json node/driver.mjs "$DIR/node"
    (
        node_bin="$(../../client-sdk/typescript/setup.sh node)"
        ln -sf "$node_bin/node" "$DIR/bin/node"
        cd "$DIR/node"
        PATH="$node_bin:$PATH" npm ci --no-audit --no-fund
    ) >&2
    python3 -m venv "$DIR/python" >&2
    "$DIR/python/bin/pip" install --quiet "redis[hiredis]==$REDIS_PY" >&2
    cp python/driver.py "$DIR/python"
    {
        sed -n 's|^\t\(go.etcd.io/etcd/server\)/v3 v|etcd |p; s|^\tgithub.com/go-redsync/redsync/v4 v|redsync |p; s|^\tgithub.com/bsm/redislock v|redislock |p; s|^\tgithub.com/redis/go-redis/v9 v|go-redis |p' go/go.mod
        tr ':' '\n' <"$DIR/classpath" | sed -n 's#.*/\(redisson\|curator-recipes\|zookeeper\)-\([0-9.]*\)\.jar#\1 \2#p'
        sed -n 's#^ *"\(ioredis\|redlock\)": "\(.*\)".*#\1 \2#p' node/package.json
        echo "redis-py $REDIS_PY"
        java -version 2>&1 | sed -n 's|.*version "\(.*\)".*|java \1|p'
        "$DIR/bin/node" --version | sed 's|v|node |'
        "$DIR/python/bin/python" --version | sed 's|Python|python|'
    } >"$DIR/versions"
    touch "$DIR/complete"
}
add_step "$DIR/complete" build_peers
provide >&2
echo "$DIR"
