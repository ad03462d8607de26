#!/usr/bin/env bash
# Run the tests marked "rounding" with the rounding of other processors. These tests learn something or compare close
# numbers. Each setting makes the numeric libraries use other instructions, which add in another order. A setting that
# rounds as the processor itself, or as a setting before it, is skipped.
#
#   bash scripts/test_rounding.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

settings=(
    "ATEN_CPU_CAPABILITY=default"
    "ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2"
    "MKL_CBWR=COMPATIBLE"
)

# roundings SETTING...: print a checksum of products (one in bfloat16), sums and functions with these settings.
roundings() {
    env OMP_NUM_THREADS=1 "$@" "${VENV:-.venv}/bin/python" -c 'import hashlib
import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention
torch.manual_seed(0)
x = torch.randn(67, 129)
results = [x @ x.T, x.bfloat16() @ x.T.bfloat16(), x.sum(1), x.exp(), x.softmax(1), gelu(x), layer_norm(x, (129,)),
           scaled_dot_product_attention(x[None], x[None], x[None])]
print(hashlib.sha256(b"".join(result.float().numpy().tobytes() for result in results)).hexdigest())'
}

bash scripts/setup.sh
seen=" $(roundings) "
ran=0
for setting in "${settings[@]}"; do
    found=$(roundings $setting)
    if [[ $seen == *" $found "* ]]; then
        echo "rounding: $setting skipped: it adds no other rounding on this processor"
        continue
    fi
    seen+="$found "
    ran=$((ran + 1))
    echo "rounding: $setting changes the roundings of this processor"
    env $setting bash scripts/test.sh -m "rounding and not slow" -n auto --maxprocesses 4 --dist worksteal
done
echo "rounding: passed with $ran of ${#settings[@]} settings"
