#!/usr/bin/env bash
# Written by autotune: trains with sft_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
missing=()
case " $* " in
    *" --dataset_name"*) ;;
    *) missing+=("the job gave lengths in place of data: add --dataset_name DATA") ;;
esac
if [ "${#missing[@]}" -gt 0 ]; then
    printf 'launch.sh: %s\n' "${missing[@]}" >&2
    exit 2
fi
# One file is a data set, too: TRL takes folders, so it gets one.
arguments=()
for one in "$@"; do
    file="${one#--dataset_name=}"
    if [ "${before-}" = --dataset_name ] || [ "$file" != "$one" ]; then
        if [ -f "$file" ]; then
            whole="$(realpath -- "$file")"
            mkdir -p "$here/one_file"
            find "$here/one_file" -type l -delete
            ln -s "$whole" "$here/one_file/train.${file##*.}"
            one="${one%"$file"}$here/one_file"
        fi
    fi
    arguments+=("$one")
    before="$one"
done
set -- "${arguments[@]}"
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 6 \
    -m trl.scripts.sft --config "$here/sft_config.yaml" "$@"
