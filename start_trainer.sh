#!/bin/sh
# Starts the trainer with the Python that runs ComfyUI. Closing the window pauses it; nothing is lost.
# Options are passed on: ./start_trainer.sh --output /path/to/ComfyUI/output
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1

output="$here/../../output"
previous=
for argument; do
    case "$argument" in --output=*) output=${argument#--output=} ;; esac
    if [ "$previous" = --output ]; then output=$argument; fi
    previous=$argument
done

# ComfyUI writes down its own Python when it loads this pack.
record="$output/stepwise_grpo/comfyui.json"
python=
why="ComfyUI recorded it in $record"
if [ -f "$record" ]; then
    python=$(sed -n 's/^[[:space:]]*"python":[[:space:]]*"\(.*\)",\{0,1\}[[:space:]]*$/\1/p' "$record" | head -n 1 | sed 's/\\\(.\)/\1/g')
fi
if [ ! -x "$python" ]; then
    python=
    why="found beside ComfyUI"
    for candidate in python_embeded/bin/python .venv/bin/python venv/bin/python; do
        for folder in "$here/../.." "$here/../../.." "$here"; do
            if [ -z "$python" ] && [ -x "$folder/$candidate" ]; then python="$folder/$candidate"; fi
        done
    done
fi
if [ -z "$python" ]; then
    why="found on PATH; ComfyUI has not recorded its own yet"
    python=$(command -v python || command -v python3) || {
        echo "No Python found. Start ComfyUI once with this pack installed, then run this again." >&2
        exit 1
    }
fi

echo "Trainer: using $python ($why)"
exec "$python" "$here/training" "$@"
