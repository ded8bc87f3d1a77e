# shellcheck shell=bash
# Sourced by the scripts beside it; makes and refreshes the virtual environment that they share.
#
#   environment runtime      what it takes to run busnode
#   environment dev          that, and what it takes to test and check it
#   environment spark        that, and what it takes to run its pipeline: 600 MB more
#   environment dev spark    all of it
#
# When nothing has changed this costs a few runs of cmp and starts no Python. The stamps in
# .venv are copies of what was installed, written last. A set-up that was cut off in the middle
# leaves .venv/.unfinished behind, and the next one starts over. All of it speaks on stderr only.

repository=${BASH_SOURCE[0]%/scripts/environment.sh}
venv=$repository/.venv

environment() {
    if environment_is_current "$@"; then return; fi
    command -v flock >/dev/null ||
        environment_fail "flock was not found; install util-linux and run this again"
    (
        if ! flock --nonblock 9; then
            environment_say "waiting for another set-up of .venv to finish"
            flock 9
        fi
        environment_is_current "$@" || environment_install "$@"
    ) 9>"$repository/.venv.lock" || exit
}

environment_is_current() {
    environment_is_whole || return 1
    environment_has_runtime || return 1
    local level
    for level in "$@"; do
        [[ $level == runtime ]] ||
            cmp -s "$repository/requirements-$level.lock" "$venv/.locked-$level" || return 1
    done
}

# The commands in a virtual environment name its folder, so one that was moved is of no use; nor is
# one whose Python has since become another version.
environment_is_whole() {
    local root='' python=''
    [[ -x $venv/bin/python && -f $venv/.made-for ]] || return 1
    { read -r root && read -r python; } <"$venv/.made-for" || return 1
    [[ $root == "$repository" && $venv/bin/python -ef $python ]]
}

environment_has_runtime() {
    cmp -s "$repository/requirements.lock" "$venv/.locked-runtime" &&
        cmp -s "$repository/pyproject.toml" "$venv/.project"
}

environment_install() {
    local level levels=() again="see above, then run this again"
    if [[ -e $venv/.unfinished ]] || ! environment_is_whole; then environment_create; fi

    # The locks agree on what they share, or pip says that they do not.
    local locks=(-r "$repository/requirements.lock")
    for level in dev spark; do
        if [[ " $* " == *" $level "* || -f $venv/.locked-$level ]]; then
            levels+=("$level")
            locks+=(-r "$repository/requirements-$level.lock")
        fi
    done

    : >"$venv/.unfinished" || environment_fail "$venv cannot be written to; $again"
    rm -f "$venv/.locked-dev" "$venv/.locked-spark"
    environment_has_runtime || rm -f "$venv/.locked-runtime" "$venv/.project"

    environment_say "installing the packages: runtime ${levels[*]}"
    environment_pip install "${locks[@]}" ||
        environment_fail "the packages could not be installed; $again"
    environment_has_runtime ||
        environment_pip install --no-deps --no-build-isolation -e "$repository" ||
        environment_fail "busnode itself could not be installed; $again"

    for level in "${levels[@]}"; do
        cp "$repository/requirements-$level.lock" "$venv/.locked-$level" ||
            environment_fail "$venv cannot be written to; $again"
    done
    {
        cp "$repository/pyproject.toml" "$venv/.project" &&
            cp "$repository/requirements.lock" "$venv/.locked-runtime" &&
            rm "$venv/.unfinished"
    } || environment_fail "$venv cannot be written to; $again"
    environment_say "ready"
}

environment_create() {
    local python
    python=$(environment_python) || exit
    environment_say "making .venv with $python"
    { rm -rf "$venv" && mkdir "$venv" && : >"$venv/.unfinished"; } ||
        environment_fail "$venv cannot be written to; see above, then run this again"
    { "$python" -I -m venv "$venv" && [[ -x $venv/bin/python ]]; } >&2 ||
        environment_fail "$python could not make .venv; see above, then run this again"
    printf '%s\n' "$repository" "$(readlink -f "$venv/bin/python")" >"$venv/.made-for"
}

# Prints the first Python that will do and is a quick one, or the first that will do; PYTHON, where it
# is set, is the only candidate. One that was compiled without its optimizations, as pyenv does, runs
# a node at 0.6 of the speed (docs/performance.md); those that come with a system have them.
environment_python() {
    local candidate old='' bare='' slow=''
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
        command -v "$candidate" >/dev/null || continue
        if ! "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            old=${old:-$candidate}
        elif ! "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null; then
            bare=${bare:-$candidate}
        elif ! environment_is_quick "$candidate"; then
            slow=${slow:-$candidate}
        else
            printf '%s\n' "$candidate"
            return
        fi
    done
    if [[ $slow ]]; then
        printf '%s\n' "$slow"
        return
    elif [[ $bare ]]; then
        environment_fail "$bare has no venv; install it (Debian, Ubuntu: apt install python3-venv)"
    elif [[ $old ]]; then
        environment_fail "$old is too old; install Python 3.11 or newer, or name one with PYTHON=…"
    fi
    environment_fail "${PYTHON:-python3} was not found; install Python 3.11 or newer"
}

environment_is_quick() {
    "$1" -I -c 'import sys, sysconfig
arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit("--enable-optimizations" not in arguments and sys.base_prefix != "/usr")'
}

environment_pip() {
    "$venv/bin/python" -I -m pip -q --disable-pip-version-check "$@" >&2
}

environment_say() {
    printf 'busnode set-up: %s\n' "$1" >&2
}

environment_fail() {
    environment_say "$1"
    exit 1
}

# phase NAME COMMAND... runs the command, says how long it took, and returns its exit code.
phase() {
    local name=$1 began=${EPOCHREALTIME/[.,]/} code=0
    shift
    printf '\n== %s\n' "$name"
    "$@" || code=$?
    took "$name" "$began"
    return "$code"
}

# took NAME SINCE prints how long it is since SINCE, in microseconds.
took() {
    local ms=$(((${EPOCHREALTIME/[.,]/} - $2) / 1000))
    printf -- '-- %s took %d.%03d s\n' "$1" $((ms / 1000)) $((ms % 1000))
}
