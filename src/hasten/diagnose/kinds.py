"""Which operator kinds are heavy, which only move data and which are quantised, in ONNX's and the runtimes' words."""

# fmt: off
HEAVY = frozenset({
    "MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
    "QLinearMatMul", "QGemm", "MatMulNBits", "Einsum", "FullyConnected",
    "Conv", "ConvTranspose", "FusedConv", "ConvInteger", "QLinearConv",
    "Convolution", "GroupConvolution", "ConvolutionBackpropData", "Deconvolution",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention", "ScaledDotProductAttention",
    "LSTM", "GRU", "RNN", "LSTMSequence", "GRUSequence", "RNNSequence", "LSTMCell", "GRUCell", "RNNCell", "RNNSeq",
})
"""No runtime fuses these into a neighbour: their data passes through memory or cache even in the ideal case."""

MOVEMENT = frozenset({
    "Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Permute", "Reshape", "Squeeze", "Unsqueeze", "Flatten",
    "Identity", "Cast", "Convert", "Concat", "Split", "VariadicSplit", "Slice", "StridedSlice", "Pad", "Expand",
    "Broadcast", "Tile", "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "MemcpyToHost",
    "MemcpyFromHost", "Shape", "ShapeOf", "Memory", "DepthToSpace", "SpaceToDepth",
})
"""These only move or relabel data."""

QUANTISED = frozenset({
    "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm", "MatMulNBits",
    "ConvInteger", "QLinearConv", "QAttention", "QLinearAdd", "QLinearMul", "QLinearAveragePool",
    "QLinearGlobalAveragePool", "QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax",
})
"""Tensors of these are counted at their small size already."""

FREE = frozenset({"Parameter", "Input", "Result", "Output", "Constant"})
"""A runtime lists these as operators and does not execute them."""

UNRATED = frozenset({
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "SVMClassifier", "SVMRegressor",
    "LabelEncoder", "CategoryMapper", "DictVectorizer", "TfIdfVectorizer", "Tokenizer", "StringNormalizer",
})
"""What these do depends on the data: walking trees and looking words up has no roof of arithmetic or bandwidth."""
# fmt: on
