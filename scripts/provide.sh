# What every setup.sh does with what it finds missing. To be sourced: it adds to `packages` (Debian's names) and
# `steps` (commands that run after them, in order), and calls `provide`, which as root on Debian installs them, and
# anywhere else prints one line to paste and exits 2. It never calls sudo.
packages=()
steps=()

readonly CACHE="${LEASEHOLD_CACHE:-$HOME/.cache/leasehold}"

# How Homebrew calls what Debian calls so.
brew_name() {
    case "$1" in
    redis-server) echo redis ;;
    chromium-headless-shell) echo chromium ;;
    npm | nodejs) echo node ;;
    golang-go) echo go ;;
    python3-venv) echo python ;;
    openjdk-17-jdk-headless) echo openjdk@17 ;;
    libc6-dev) ;;
    *) echo "$1" ;;
    esac
}

provide() {
    if ((${#packages[@]} + ${#steps[@]} == 0)); then
        return
    fi
    if [[ $EUID -ne 0 || ! -f /etc/debian_version ]]; then
        local line="" name
        if ((${#packages[@]} > 0)) && [[ -f /etc/debian_version ]]; then
            line="sudo apt-get update && sudo apt-get install -y ${packages[*]}"
        elif ((${#packages[@]} > 0)); then
            line="brew install"
            for name in "${packages[@]}"; do line+=" $(brew_name "$name")"; done
        fi
        for step in "${steps[@]}"; do line+="${line:+ && }$step"; done
        echo "Something is missing. Paste this line (or install the same another way), then try again:" >&2
        echo "$line" >&2
        exit 2
    fi
    if ((${#packages[@]} > 0)); then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null
    fi
    for step in "${steps[@]}"; do eval "$step" </dev/null; done
    packages=()
    steps=()
}
