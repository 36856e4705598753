#!/bin/sh
# Compares models with Hugging Face's transformers, where PYTHON has that package, torch and safetensors:
# folders that tenon has written are loaded there and give the same logits, and folders that
# save_pretrained has written (sharded, of every dtype) give the same here. Usage: tools/oracle-models.sh BUILD
build=$1
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, safetensors' 2>/dev/null || {
    echo "oracle-models: skipped: $python has not all of torch, transformers, safetensors (pip install them)" >&2
    exit 0
}
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error exec "$python" tools/oracle-models.py "$build" "$build/oracle-models"
