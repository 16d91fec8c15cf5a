#!/usr/bin/env bash
# What this project does on the GPUs of this machine, stage by stage, each a real short training run:
#
#   scripts/gpu_check.sh [MODEL]     MODEL: folder of a chat model; without it the demo's is made
#
# Stages that cannot run here are skipped with the reason. The table at the end is what belongs into
# docs/gpu.md. Exit status: 0 all that could run has passed, 1 a stage failed, 2 there is no torch or
# no such MODEL, 3 nothing could run. PYTHON names the interpreter (default: python3), OUT the folder
# for runs and logs, JOB_HOURS what each of the last stages, the orchestrator's own jobs, is given
# (default: 0.25), ONLY a regular expression of the names of the stages that run (default: all).
set -uo pipefail
if [ -n "${1:-}" ]; then
    given=$(realpath -e "$1") || exit 2
    set -- "$given"
fi
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export VLLM_HOST_IP=127.0.0.1
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
model=${1:-}
steps=3
job_hours=${JOB_HOURS:-0.25}
port=8190
rows=()
failed=0
ran=0

note() { # stage, result, detail
    rows+=("$(printf '%-34s %-8s %s' "$1" "$2" "$3")")
    echo "gpu_check: ${rows[-1]}"
    [ "$2" != FAILED ] || failed=$((failed + 1))
}

stage() { # name, log, command...: runs the command, its last line or its results are the detail
    local name=$1 log=$out/$2 began=$SECONDS
    shift 2
    [[ $name =~ ${ONLY:-} ]] || return 0
    ran=$((ran + 1))
    if "$@" >"$log" 2>&1; then
        note "$name" ok "$((SECONDS - began)) s; $(detail "$log")"
    else
        note "$name" FAILED "see $log: $(tail -n 1 "$log")"
    fi
}

detail() { # the last step's numbers of a training run, else the last line of the log
    local metrics=${1%.log}/metrics.jsonl
    [ -f "$metrics" ] || { tail -n 1 "$1"; return; }
    "$python" - "$metrics" <<'P'
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
last = steps[-1]
gaps = [step["metrics"].get("sampling/sampling_logp_difference/mean") for step in (steps[0], last)]
reward = "none" if last["reward"] is None else f"{last['reward']:.2f}"
shown = "none" if None in gaps else "{:.4f} in the first step, {:.4f} in the last".format(*gaps)
print(f"{len(steps)} steps, last one {last['seconds']:.1f} s, {last['tokens_per_second']:,.0f} tokens/s,"
      f" reward {reward}, lost episodes {sum(s['lost_episodes'] for s in steps)},"
      f" logprob gap {shown}")
P
}

named() { # first and last of this script's GPUs: their names for CUDA
    (IFS=,; echo "${devices[*]:$1:$2-$1+1}")
}

train() { # first and last GPU (one process each), run's name, KEY=VALUE...
    local visible processes=$(($2 - $1 + 1)) name=$3
    visible=$(named "$1" "$2")
    shift 3
    # a process that sees several GPUs would have torch spread its batches over them
    CUDA_VISIBLE_DEVICES=$visible "$python" -m miner train --processes "$processes" \
        "run_dir=$out/$name" "output.dir=$out/$name-model" \
        "model.path=$model" environment.channel=builtin "environment.deck_sizes=[8]" \
        rollout.groups_per_step=4 optimizer.micro_batch_tokens=8192 "optimizer.max_steps=$steps" \
        evaluation.episodes=10 "evaluation.every_steps=$steps" "$@"
}

orchestrator() { # name, data set type: a validator's job of minutes on all GPUs, with its own plan
    local root=$out/$1
    mkdir -p "$root/cache/models" "$root/checkpoints"
    ln -sfn "$(realpath "$model")" "$root/cache/models/gpu-check"
    MINER_CACHE_DIR=$root/cache MINER_CHECKPOINTS_DIR=$root/checkpoints \
        "$python" -m entrypoint --task-id check --model gpu-check --expected-repo-name model \
        --dataset-type "$2" --task-type EnvTask \
        --hours-to-complete "$job_hours"
}

split() { # name, vLLM's GPUs, trainer processes, KEY=VALUE...: vLLM on the first GPUs
    local name=$1 engines=$2 processes=$3 status
    shift 3
    PYTHONPATH=$PWD VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=$(named 0 $((engines - 1))) \
        "$python" -m entrypoint.inference --kill-after 10 vllm serve "$model" --host 127.0.0.1 \
        --port "$port" --dtype bfloat16 --data-parallel-size "$engines" --max-model-len 4096 --gpu-memory-utilization 0.8 \
        --weight-transfer-config '{"backend":"file"}' --logprobs-mode processed_logprobs \
        --worker-extension-cls miner.inference.vllm.worker.WeightsByFile \
        --max-logprobs -1 >"$out/vllm-$name.log" 2>&1 &
    local server=$!
    train "$engines" $((engines + processes - 1)) "$name" \
        model.dtype=bfloat16 rollout.engine=vllm_server "rollout.server=http://127.0.0.1:$port" "$@"
    status=$?
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    return $status
}

"$python" -c 'import torch' >/dev/null 2>&1 || {
    echo "gpu_check: $python has no torch: set PYTHON, for example to .venv/bin/python" >&2
    exit 2
}
gpus=0
if command -v nvidia-smi >/dev/null && gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) && [ "$gpus" -gt 0 ]; then
    IFS=, read -ra devices <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}"
    gpus=${#devices[@]} # those that the caller lets it have
    note "GPUs and driver" found "$gpus x $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
else
    gpus=0
    note "GPUs and driver" skipped "no GPU: nvidia-smi lists none"
fi
cuda=$("$python" -c 'import torch; print(torch.__version__, torch.cuda.is_available())' 2>&1 | tail -n 1)
if [ "$gpus" -gt 0 ] && [ "${cuda##* }" != True ]; then
    note "torch sees the GPUs" FAILED "torch ${cuda% *} does not: its CUDA build needs a newer driver, or it is a CPU build"
    gpus=0
fi

vllm=""
if "$python" -c 'import vllm' 2>/dev/null; then
    vllm=yes
    stage "calls fit vLLM and TRL" surface.log "$python" -m tests.vllm_surface
else
    note "calls fit vLLM and TRL" skipped "vLLM is not installed"
fi

deepspeed=""
if [ "$gpus" -gt 1 ] && "$python" -c 'import deepspeed' 2>/dev/null; then
    deepspeed=yes
fi

if [ "$gpus" -gt 0 ]; then
    if [ -z "$model" ]; then
        model=$out/tiny
        ONLY="" stage "the demo's base model" tiny.log "$python" -m miner.tiny_model --out "$model"
        ran=$((ran - 1)) # it was not asked for
    fi
    stage "transformers, float32" float32.log train 0 0 float32
    stage "transformers, bfloat16" bfloat16.log train 0 0 bfloat16 model.dtype=bfloat16
    stage "transformers, LoRA" lora.log train 0 0 lora model.dtype=bfloat16 model.tuning=lora
    if [ -n "$vllm" ]; then
        stage "vLLM colocated, 1 GPU" colocated.log train 0 0 colocated model.dtype=bfloat16 \
            rollout.engine=vllm_colocated rollout.memory_share=0.3
        stage "the same, 16 cards" cards16.log train 0 0 cards16 model.dtype=bfloat16 \
            rollout.engine=vllm_colocated rollout.memory_share=0.3 "environment.deck_sizes=[16]"
        stage "the same, LoRA" colocated-lora.log train 0 0 colocated-lora model.dtype=bfloat16 \
            rollout.engine=vllm_colocated rollout.memory_share=0.3 model.tuning=lora
        stage "weights of every kind of base" bases.log "$python" -m tests.real_vllm.gpu_bases
        if [ -n "${1:-}" ]; then
            stage "the same, duels, 512 tokens" duels.log train 0 0 duels model.dtype=bfloat16 \
                rollout.engine=vllm_colocated rollout.memory_share=0.3 \
                environment.channel=duel rollout.max_reply_tokens=512
            stage "the same, first from teachers" taught.log train 0 0 taught model.dtype=bfloat16 \
                rollout.engine=vllm_colocated rollout.memory_share=0.3 environment.channel=duel \
                rollout.max_reply_tokens=512 demonstrations.share=0.5
        else
            note "the same, duels, 512 tokens" skipped "the demo's tokenizer makes their prompts too long: name a MODEL"
        fi
    else
        note "vLLM colocated, 1 GPU" skipped "vLLM is not installed"
    fi
    if [ -n "$vllm" ] && [ "$gpus" -gt 1 ]; then
        stage "vLLM server + trainer, 2 GPUs" split.log split split 1 1
    else
        note "vLLM server + trainer, 2 GPUs" skipped "it needs vLLM and two GPUs"
    fi
    if [ -n "$deepspeed" ]; then
        stage "transformers, 2 ranks, ZeRO-2" ranks.log train 0 1 ranks \
            model.dtype=bfloat16 optimizer.zero_stage=2
        [ -z "$vllm" ] || stage "vLLM colocated, 2 ranks, ZeRO-2" both.log train 0 1 both \
            model.dtype=bfloat16 optimizer.zero_stage=2 rollout.engine=vllm_colocated \
            rollout.memory_share=0.3
    else
        note "transformers, 2 ranks, ZeRO-2" skipped "it needs DeepSpeed and two GPUs"
    fi
    if [ -n "$vllm" ] && [ "$gpus" -gt 2 ]; then
        stage "data parallel vLLM + trainer" parallel.log split parallel 2 1
    else
        note "data parallel vLLM + trainer" skipped "it needs vLLM and three GPUs"
    fi
    for zero in 2 3; do
        if [ -n "$vllm" ] && [ -n "$deepspeed" ] && [ "$gpus" -gt 2 ]; then
            stage "vLLM server + 2 ranks, ZeRO-$zero" "zero$zero.log" split "zero$zero" 1 2 \
                "optimizer.zero_stage=$zero"
        else
            note "vLLM server + 2 ranks, ZeRO-$zero" skipped "it needs vLLM, DeepSpeed and 3 GPUs"
        fi
    done
    if [ -n "$vllm" ]; then
        stage "the orchestrator, all GPUs" orchestrator.log orchestrator orchestrator \
            '{"environment_name": "goofspiel"}'
        # teachers first, as in today's jobs
        [ -z "${1:-}" ] || stage "the orchestrator, today's duels" today.log orchestrator today \
            '{"environment_names": ["goofspiel", "liars_dice", "leduc_poker", "gin_rummy", "othello", "clobber"]}'
    else
        note "the orchestrator, all GPUs" skipped "vLLM is not installed"
    fi
fi

echo
echo "$(date -u +%F), torch ${cuda% *}, runs and logs in $out"
printf '%s\n' "${rows[@]}"
[ "$failed" -eq 0 ] || exit 1
if [ "$gpus" -gt 0 ] && [ "$ran" -eq 0 ]; then
    echo "gpu_check: no stage's name matches ONLY=${ONLY:-}" >&2
    exit 3
fi
if [ "$gpus" -eq 0 ]; then
    echo "gpu_check: nothing was checked on a GPU" >&2
    exit 3
fi
