#!/usr/bin/env bash
# Sets up a GPU machine that reaches no package index, and runs a named measurement there.
#
#   scripts/gpu.sh wheels [DIR] [--python 3.12] [--with-arrow]    where there is an index: collect
#   scripts/gpu.sh setup [DIR]                                    on the GPU machine: install
#   scripts/gpu.sh NAME [OUT] [--rehearse]                        measure; raw rows go to OUT
#
# DIR is .wheels unless given. The GPU machine must have its own torch (with CUDA), transformers and
# what these need; the wheels are for Linux on x86-64. `--with-arrow` adds pyarrow and pandas (70 MB).
# `--rehearse` runs the same measurement on the CPU, on something tiny, so that it can be tried first.
# The Python is $PYTHON, else .venv's, else python3.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
site=$root/.site
carried_limit_mib=60

# What a machine with torch and transformers may well lack. DeepSpeed is built, not downloaded.
packages=(
    trl peft accelerate
    datasets dill multiprocess xxhash requests
    optuna alembic Mako SQLAlchemy colorlog PyYAML
    einops hjson msgpack ninja py-cpuinfo
    pydantic pydantic_core annotated-types typing-inspection
    nvidia-ml-py click rich markdown-it-py mdurl Pygments
)

say() { printf 'gpu: %s\n' "$*"; }

fail() {
    printf 'gpu: error: %s\n' "$1" >&2
    shift
    if (($#)); then printf '\nhint: %s\n' "$@" >&2; fi
    exit 3
}

wheels() {
    local directory=$root/.wheels version=3.12 temporary platform
    local pip=("$python" -m pip --disable-pip-version-check)
    local target=(--implementation cp)
    while (($#)); do
        case $1 in
            --python) version=${2:?--python needs a version}; shift ;;
            --with-arrow) packages+=(pyarrow pandas) ;;
            -*) fail "wheels has no option $1" ;;
            *) directory=$1 ;;
        esac
        shift
    done
    mkdir -p -- "$directory"
    if [[ -n $(ls -A -- "$directory") && ! -e $directory/.autotune-wheels ]]; then
        fail "$directory holds other files" "name a folder that is new or empty"
    fi
    touch -- "$directory/.autotune-wheels"
    rm -f -- "$directory"/*.whl # two versions of one package stop an installation
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
        target+=(--platform "${platform}_x86_64")
    done
    say "downloading ${#packages[@]} wheels for Python $version"
    "${pip[@]}" download --quiet --no-deps --only-binary=:all: --python-version "$version" \
        "${target[@]}" -c "$root/constraints.txt" -d "$directory" "${packages[@]}"
    say "building DeepSpeed, without its kernels: a pure Python wheel"
    local build=(wheel --quiet --no-deps -w "$directory")
    if "$python" -c 'import setuptools, wheel' 2>/dev/null; then build+=(--no-build-isolation); fi
    DS_BUILD_OPS=0 "${pip[@]}" "${build[@]}" "$(grep '^deepspeed==' "$root/constraints.txt")"
    local mib
    mib=$(($(du -sk -- "$directory" | cut -f1) / 1024 + 1))
    say "$directory: $(ls -- "$directory" | wc -l) wheels, $mib MiB"
    if ((mib > carried_limit_mib)); then say "warning: that is more than $carried_limit_mib MiB"; fi
}

setup() {
    local directory=${1:-$root/.wheels} missing=() wheel
    local pip=("$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps)
    "$python" -c 'import torch' 2>/dev/null || fail "$python has no torch" \
        "name another: PYTHON=/path/to/python scripts/gpu.sh setup" \
        "where there is a package index, scripts/setup installs everything"
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        say "warning: torch sees no GPU; only rehearsals will run"
    [[ -d $directory ]] || fail "there is no folder $directory" \
        "make it where there is a package index: scripts/gpu.sh wheels"
    while IFS= read -r wheel; do missing+=("$wheel"); done < <(
        "$python" "$root/scripts/missing_wheels.py" "$directory"
    )
    if ((${#missing[@]})); then
        say "installing ${#missing[@]} packages from $directory"
        if ! "${pip[@]}" --find-links "$directory" "${missing[@]}"; then
            say "this Python cannot be installed into; using $site beside it"
            "${pip[@]}" --upgrade --target "$site" "${missing[@]}"
        fi
    fi
    "${pip[@]}" --no-build-isolation -e "$root" 2>/dev/null ||
        say "autotune could not be installed; this script finds it by PYTHONPATH"
    find_modules
    "$python" -m autotune doctor || true
    "$python" -c 'import autotune, deepspeed, trl; from trl import SFTTrainer' ||
        fail "the stack cannot be imported" "the message above says which part is missing or too old"
    say "ready: scripts/gpu.sh smoke"
}

# What `setup` could not install into the Python itself is found here, by every child process too.
find_modules() {
    if [[ -d $site ]]; then export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}; fi
    if ! (cd / && "$python" -c 'import autotune') 2>/dev/null; then
        export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    fi
}

# The measurements: a function `measure_NAME` each, named in benchmarks/README.md.

measure_smoke() { "$python" "$root/scripts/gpu_smoke.py" "$@"; }

measure_memory() { "$python" "$root/scripts/gpu_memory.py" "$@"; }

# Every candidate of the 0.5B shape, in OUT/grid-0.5b.jsonl; what was cut goes on with the same OUT.
measure_grid() {
    local out=${1:?grid needs a folder for its rows}
    mkdir -p -- "$out"
    "$python" "$root/benchmarks/search/record.py" "$root/benchmarks/search/jobs/gpu-0.5b.yaml" \
        --out "$out/grid-0.5b.jsonl" "${@:2}"
}

# What a shape costs attention the first time; takes less than a minute.
measure_attention() {
    local out=${1:?attention needs a folder for its rows}
    mkdir -p -- "$out"
    out=$(realpath -- "$out")
    (cd -- "$root" && "$python" -m benchmarks.attention_shapes.run --out "$out/attention.jsonl" "${@:2}")
}

# autotune's pick beside TRL's defaults, auto_find_batch_size and one written by hand, in turns.
measure_outcome() { PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} "$python" -m benchmarks.outcome.run "$@"; }

names() { declare -F | sed -n 's/^declare -f measure_//p' | paste -sd' '; }

python=${PYTHON:-$root/.venv/bin/python}
if [[ -z ${PYTHON:-} && ! -x $python ]]; then python=python3; fi
name=${1:-}
shift || true
case $name in
    wheels | setup) "$name" "$@" ;;
    *)
        declare -F "measure_$name" >/dev/null ||
            fail "there is no \`$name\`" "choose from: wheels setup $(names)"
        find_modules
        "measure_$name" "$@"
        ;;
esac
