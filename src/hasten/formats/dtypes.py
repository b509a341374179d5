"""Names and sizes of element types: ONNX's numbers and OpenVINO's words, as NumPy names."""

from __future__ import annotations

ONNX_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
"""TensorProto.DataType to the name of the same type in NumPy or ml_dtypes."""

OPENVINO_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "i4": "int4", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
    "u4": "uint4", "u2": "uint2", "u1": "uint1", "boolean": "bool", "string": "string", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn", "nf4": "nf4", "u3": "uint3",
    "u6": "uint6",
}  # fmt: skip
"""OpenVINO's element_type to the name of the same type in NumPy or ml_dtypes."""

_BITS = {
    "float64": 64, "int64": 64, "uint64": 64, "complex64": 64, "complex128": 128, "float32": 32, "int32": 32,
    "uint32": 32, "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "int4": 4, "uint4": 4, "float4_e2m1fn": 4, "nf4": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6, "uint6": 6,
    "uint3": 3, "uint2": 2, "int2": 2, "uint1": 1,
}  # fmt: skip


def bits(dtype: str) -> int:
    """Bits of one element; 0 for strings, whose size is not known from the type."""
    return _BITS.get(dtype, 0)


def nbytes(dtype: str, elements: int) -> int:
    """Bytes of a packed tensor."""
    return (elements * bits(dtype) + 7) // 8


def is_weight(dtype: str) -> bool:
    """Whether elements of this type count as parameters: floating point, or integers of at most 8 bits."""
    return "float" in dtype or dtype == "nf4" or ("int" in dtype and 0 < bits(dtype) <= 8)
