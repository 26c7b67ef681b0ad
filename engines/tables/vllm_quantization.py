"""Least compute capability for each quantization of vLLM 0.32.0, by its own
`QuantizationConfig.get_min_capability()`.

Generated from tests/engines/facts/vllm-quantization.json; do not edit. Pairs of
numbers: as text, "10.0" would be below "9.0".
"""

LEAST_CAPABILITY = {
    "auto_awq": (7, 5),
    "auto_gptq": (6, 0),
    "awq": (7, 5),
    "awq_marlin": (7, 5),
    "compressed-tensors": (7, 0),
    "deepseek_v4_fp8": (7, 5),
    "experts_int8": (8, 0),
    "fbgemm_fp8": (8, 0),
    "fp8": (7, 5),
    "fp8_per_block": (7, 5),
    "fp8_per_channel": (7, 5),
    "fp8_per_tensor": (7, 5),
    "fp_quant": (10, 0),
    "gpt_oss_mxfp4": (8, 0),
    "gptq": (6, 0),
    "gptq_marlin": (6, 0),
    "humming": (7, 5),
    "inc": (6, 0),
    "int8_per_channel_weight_only": (7, 5),
    "modelopt": (8, 0),
    "modelopt_fp4": (7, 5),
    "modelopt_mixed": (7, 5),
    "modelopt_mxfp8": (8, 0),
    "moe_wna16": (7, 0),
    "mxfp4": (8, 0),
    "mxfp8": (8, 0),
    "nvfp4_per_token": (7, 5),
    "online": (7, 5),
    "quark": (7, 0),
    "torchao": (7, 5),
}
