#!/bin/sh
# A fine-tune as a user does it, against Hugging Face's transformers, where PYTHON has that package,
# tokenizers, torch and safetensors: a Llama folder with a tokenizer, a text, SIGTERM in the middle, --resume;
# then what was saved is loaded there. Usage: tools/oracle-finetune.sh BUILD
build=$1
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, tokenizers, safetensors' 2>/dev/null || {
    echo "oracle-finetune: skipped: $python has not all of torch, transformers, tokenizers, safetensors (pip install them)" >&2
    exit 0
}
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error exec "$python" tools/oracle-finetune.py "$build" "$build/oracle-finetune"
