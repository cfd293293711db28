"""A plug-in of the tests alone: vLLM's RMSNorm with the roundings of its CUDA kernel, in a stock engine on a CPU.

The CPU path norms the FP32 sum of input and residual; the kernel (csrc/layernorm_kernels.cu of vLLM) adds in the
activations' type, norms the rounded stream, and rounds before it multiplies with the weight.
"""


def register():
    from vllm.model_executor.layers.layernorm import RMSNorm

    def forward(self, x, residual=None):
        stream = x if residual is None else x + residual
        wide = stream.float()
        normed = (wide * (wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()).to(x.dtype)
        normed = normed * self.weight.data
        return normed if residual is None else (normed, stream)

    RMSNorm.forward_native = RMSNorm.forward_cpu = forward
