# Installs what a setup.sh finds missing. A setup.sh sources this file, adds Debian packages to `packages`, calls
# `add_step` and `add_folder`, and then `provide`. `provide` installs the packages as root on Debian; on other systems
# it prints one line to paste and exits 2. Then it runs the steps in order, as any user. It never calls sudo.
#
# Several checkouts may share the cache. The steps run under a lock on the cache, and a step is skipped if another setup
# has created its result in the meantime.
packages=()
step_results=()
step_commands=()

readonly CACHE="${LEASEHOLD_CACHE:-$HOME/.cache/leasehold}"
PREFLIGHT="$(dirname "${BASH_SOURCE[0]}")/preflight.sh"
readonly PREFLIGHT
readonly CACHE_GB=3

# Adds a step unless its result exists. $1: the file that the command creates last; $2: the command.
add_step() {
    if [[ ! -e "$1" ]]; then
        step_results+=("$1")
        step_commands+=("$2")
    fi
}

# Adds a step that creates a folder. $1: the folder; $2: a file in it; $3: the command, which fills the folder $NEW. An
# interrupted or failed command leaves no incomplete folder. The contents must be movable, which virtual environments
# are not.
add_folder() {
    add_step "$1/$2" "NEW='$1.new'; rm -rf '$1.new' '$1'; mkdir -p '$1.new'; $3; mv '$1.new' '$1'"
}

# Prints Homebrew's name of a Debian package.
brew_name() {
    case "$1" in
    redis-server) echo redis ;;
    chromium-headless-shell) echo chromium ;;
    npm | nodejs) echo node ;;
    golang-go) echo go ;;
    python3-venv) echo python ;;
    openjdk-17-jdk-headless) echo openjdk@17 ;;
    util-linux) echo flock ;;
    libc6-dev) ;;
    *) echo "$1" ;;
    esac
}

# Fails unless this user can install packages on this machine in the way that provide does.
check_packages() {
    if [[ $EUID -eq 0 && -f /etc/debian_version ]]; then
        return
    fi
    local line name
    if [[ -f /etc/debian_version ]]; then
        line="sudo apt-get update && sudo apt-get install -y ${packages[*]}"
    else
        line="brew install"
        for name in "${packages[@]}"; do line+=" $(brew_name "$name")"; done
    fi
    echo "Packages are missing. Paste this line (or install them another way), then try again:" >&2
    echo "$line" >&2
    exit 2
}

# Fails unless the cache has an owner and space that permit the steps. Results outside of the cache, as node_modules,
# need no writable cache.
check_cache() {
    local result
    for result in "${step_results[@]}"; do
        if [[ "$result" == "$CACHE"/* ]]; then
            "$PREFLIGHT" cache-owner "$CACHE"
            "$PREFLIGHT" disk "$CACHE" "$CACHE_GB" LEASEHOLD_CACHE
            return
        fi
    done
}

install_packages() {
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null
}

explain_failure() {
    echo "$step_result could not be made, see above; if a download failed, connect to the network and run:" >&2
    echo "  make setup" >&2
}

run_steps() {
    local i
    for i in "${!step_results[@]}"; do
        if [[ ! -e "${step_results[i]}" ]]; then
            (
                exec {lock}<&-
                step_result="${step_results[i]}"
                trap '[[ $? == 0 ]] || explain_failure' EXIT
                eval "${step_commands[i]}"
            ) </dev/null
        fi
    done
}

provide() {
    if ((${#packages[@]} + ${#step_results[@]} == 0)); then
        return
    fi
    command -v flock >/dev/null || packages+=(util-linux)
    if ((${#packages[@]} > 0)); then check_packages; fi
    check_cache
    local lock
    mkdir -p "$CACHE"
    [[ -e "$CACHE/lock" ]] || touch "$CACHE/lock"
    exec {lock}<"$CACHE/lock"
    if ! flock --nonblock "$lock"; then
        echo "Waiting for another setup that uses $CACHE" >&2
        flock "$lock"
    fi
    # Processes that a package or a step starts must not inherit the lock.
    if ((${#packages[@]} > 0)); then (exec {lock}<&-; install_packages); fi
    run_steps
    exec {lock}<&-
    packages=()
    step_results=()
    step_commands=()
}
