"""FlashInfer's all-reduce fusion functions over Stoker's ops: code written for them switches by its import.

    from stoker import flashinfer_compat as comm   # instead of: import flashinfer.comm as comm

Names, parameters and meaning are those of flashinfer.comm.trtllm_ar (github.com/flashinfer-ai/flashinfer), for
  trtllm_create_ipc_workspace_for_all_reduce_fusion, trtllm_destroy_ipc_workspace_for_all_reduce_fusion,
  trtllm_allreduce_fusion, trtllm_moe_allreduce_fusion, trtllm_moe_finalize_allreduce_fusion.
Outputs are written into the tensors given; the functions return None. Tensors may be flat or [token_num, hidden_dim].
What differs:
  * the numbers are Stoker's: FP32 accumulation in a fixed order, so fp32_acc=False gives the same as True;
  * `workspace_ptrs` is the int64 tensor that the create function returned, and has one element, the communicator;
    pass it, do not copy it to another device;
  * quant_out, scale_out and the quantising patterns are refused with NotImplementedError, before anything is written;
  * use_oneshot is chosen by Stoker, and launch_with_pdl / trigger_completion_at_end are hints: the launch is
    programmatic when launch_with_pdl is set, and always triggers after its last store;
  * every wait has a deadline: a failure raises RuntimeError from a later call or from `health`, never a hang.
"""

import enum

import torch

import stoker

_workspaces = {}  # id of the handles list -> Communicator


class AllReduceFusionPattern(enum.IntEnum):
    """FlashInfer's values."""

    kAllReduce = 0
    kARResidualRMSNorm = 1
    kARResidualRMSNormFP8Quant = 2
    kARResidualRMSNormFP4Quant = 3
    kARResidualRMSNormOutFP8Quant = 4
    kARResidualRMSNormOutFP4Quant = 5


class QuantizationSFLayout(enum.IntEnum):
    """FlashInfer's values; named in the error that refuses them."""

    SWIZZLED_128x4 = 0
    SWIZZLED_8x4 = 1
    LINEAR = 2


def trtllm_create_ipc_workspace_for_all_reduce_fusion(tp_rank, tp_size, max_token_num, hidden_dim,
                                                      use_fp32_lamport=False, group=None, create_metadata=False,
                                                      comm_backend=None, use_symm_dev_mem=False, *, device="cuda"):
    """Collective over `group`. Returns (ipc_handles, workspace_tensor), and a dict if create_metadata.

    use_fp32_lamport and use_symm_dev_mem (float32 tensors, symmetric memory) and comm_backend are not supported.
    device is Stoker's own parameter: "cpu" runs on CPU ranks.
    """
    if use_fp32_lamport:
        raise NotImplementedError("stoker: use_fp32_lamport=True: float32 tensors; bfloat16 and float16 are supported")
    if use_symm_dev_mem or comm_backend is not None:
        raise NotImplementedError("stoker: use_symm_dev_mem and comm_backend; pass a torch process group as group")
    communicator = stoker.Communicator.from_process_group(group, device=device, max_tokens=max_token_num,
                                                          hidden_max=hidden_dim, name="flashinfer")
    handles = [[communicator.handle]]
    _workspaces[id(handles)] = (handles, communicator)
    workspace = torch.tensor([communicator.handle], dtype=torch.int64)
    if not create_metadata:
        return handles, workspace
    return handles, workspace, {"tp_rank": tp_rank, "tp_size": tp_size, "max_token_num": max_token_num,
                                "hidden_dim": hidden_dim, "use_fp32_lamport": False}


def trtllm_destroy_ipc_workspace_for_all_reduce_fusion(workspace, group=None):
    """Collective, bounded, idempotent. workspace: the ipc_handles that the create function returned."""
    _, communicator = _workspaces.pop(id(workspace), (None, None))
    if communicator is not None:
        communicator.close()


def health(workspace):
    """None, or the first failure that a rank reported. workspace: the ipc_handles. Stoker's own addition."""
    return _workspaces[id(workspace)][1].health()


def trtllm_allreduce_fusion(allreduce_in, world_size, world_rank, token_num, hidden_dim, workspace_ptrs,
                            launch_with_pdl, trigger_completion_at_end, fp32_acc, pattern_code, use_oneshot,
                            allreduce_out, residual_in, residual_out, norm_out, quant_out, scale_out, rms_gamma,
                            rms_eps, scale_factor, layout_code, metadata=None, block_quant_group_size=None,
                            weight_bias=None):
    """kAllReduce: allreduce_out = sum over ranks. kARResidualRMSNorm: residual_out = sum + residual_in,
    norm_out = RMSNorm(residual_out) * (weight_bias + rms_gamma), and allreduce_out, where given, = sum."""
    pattern = AllReduceFusionPattern(pattern_code)
    if pattern > AllReduceFusionPattern.kARResidualRMSNorm:
        raise NotImplementedError(_quantised(pattern.name, layout_code))
    _refuse_quantised(pattern.name, layout_code, quant_out, scale_out)
    if metadata is not None:
        _check_metadata(metadata, world_size, token_num, hidden_dim)
    shape = (token_num, hidden_dim)
    given, handle = allreduce_in.view(shape), _handle(workspace_ptrs)
    if pattern == AllReduceFusionPattern.kAllReduce:
        _need(pattern.name, allreduce_out=allreduce_out)
        _sum(given, handle, allreduce_out.view(shape), launch_with_pdl)
        return
    _need(pattern.name, residual_in=residual_in, residual_out=residual_out, norm_out=norm_out, rms_gamma=rms_gamma,
          rms_eps=rms_eps)
    if allreduce_out is not None:
        _sum(given, handle, allreduce_out.view(shape), launch_with_pdl)
    torch.ops.stoker.allreduce_rmsnorm.out(
        given, rms_gamma, handle, residual=residual_in.view(shape), eps=rms_eps, weight_bias=weight_bias or 0.0,
        programmatic_launch=bool(launch_with_pdl), residual_out=residual_out.view(shape),
        norm_out=norm_out.view(shape))


def trtllm_moe_allreduce_fusion(world_size, world_rank, token_num, hidden_dim, workspace_ptrs, launch_with_pdl,
                                residual_in, rms_gamma, rms_eps, scale_factor, moe_reduction_device_num_experts,
                                moe_reduction_scale_input, moe_reduction_active_experts_token_input,
                                moe_reduction_token_input, layout_code, moe_allreduce_out, residual_out, norm_out,
                                quant_out, scale_out, weight_bias=None, *, backend="trtllm"):
    """Min-latency form: active experts' outputs for all tokens, [experts, token_num, hidden_dim], scales
    [experts, token_num], plus this rank's moe_reduction_token_input (FC2 of the shared expert, [token_num, hidden])."""
    _refuse_quantised("trtllm_moe_allreduce_fusion", layout_code, quant_out, scale_out)
    _need("trtllm_moe_allreduce_fusion", residual_out=residual_out, norm_out=norm_out)
    experts, shape = int(moe_reduction_device_num_experts), (token_num, hidden_dim)
    rows = moe_reduction_active_experts_token_input.view(-1, token_num, hidden_dim)[:experts]
    scales = moe_reduction_scale_input.view(-1, token_num)[:experts]
    handle, shared = _handle(workspace_ptrs), moe_reduction_token_input.view(shape)
    if moe_allreduce_out is not None:  # its norm is overwritten by the second launch
        torch.ops.stoker.moe_reduce_allreduce_rmsnorm.out(
            rows, scales, rms_gamma, handle, shared=shared, residual_out=moe_allreduce_out.view(shape),
            norm_out=norm_out.view(shape))
    torch.ops.stoker.moe_reduce_allreduce_rmsnorm.out(
        rows, scales, rms_gamma, handle, shared=shared, residual=residual_in.view(shape), eps=rms_eps,
        weight_bias=weight_bias or 0.0, programmatic_launch=bool(launch_with_pdl),
        residual_out=residual_out.view(shape), norm_out=norm_out.view(shape))


def trtllm_moe_finalize_allreduce_fusion(allreduce_in, residual_in, norm_weight, expanded_idx_to_permuted_idx,
                                         norm_out, residual_out, quant_out, scale_out, workspace_ptrs,
                                         launch_with_pdl, world_rank, world_size, eps, shared_expert_output,
                                         expert_scale_factor, routed_scaling_factor, weight_bias=None, *,
                                         backend="trtllm"):
    """allreduce_in [rows, hidden] permuted and un-weighted; indices [token_num, top_k] int32, -1 = not here;
    expert_scale_factor [token_num, top_k] or None (1); routed_scaling_factor None is 1.0."""
    _refuse_quantised("trtllm_moe_finalize_allreduce_fusion", None, quant_out, scale_out)
    _need("trtllm_moe_finalize_allreduce_fusion", residual_in=residual_in, residual_out=residual_out,
          norm_out=norm_out)
    shape = (expanded_idx_to_permuted_idx.shape[0], allreduce_in.shape[-1])
    torch.ops.stoker.moe_finalize_allreduce_rmsnorm.out(
        allreduce_in, expanded_idx_to_permuted_idx, expert_scale_factor, norm_weight, _handle(workspace_ptrs),
        shared=None if shared_expert_output is None else shared_expert_output.view(shape),
        residual=residual_in.view(shape), eps=eps, weight_bias=weight_bias or 0.0,
        routed_scaling_factor=1.0 if routed_scaling_factor is None else routed_scaling_factor,
        programmatic_launch=bool(launch_with_pdl), residual_out=residual_out.view(shape),
        norm_out=norm_out.view(shape))


def _sum(given, handle, out, programmatic):
    gamma = torch.ones(given.shape[1], dtype=given.dtype, device=given.device)
    torch.ops.stoker.allreduce_rmsnorm.out(given, gamma, handle, programmatic_launch=bool(programmatic),
                                           residual_out=out, norm_out=torch.empty_like(given))


def _handle(workspace_ptrs):
    if workspace_ptrs.device.type != "cpu" or workspace_ptrs.dtype != torch.int64 or workspace_ptrs.numel() != 1:
        raise ValueError("stoker: workspace_ptrs is not the tensor that stoker.flashinfer_compat."
                         "trtllm_create_ipc_workspace_for_all_reduce_fusion returned")
    return workspace_ptrs.item()


def _need(pattern, **tensors):
    missing = [name for name, tensor in tensors.items() if tensor is None]
    if missing:
        raise ValueError(f"stoker: {pattern} needs {', '.join(missing)}")


def _refuse_quantised(pattern, layout_code, quant_out, scale_out):
    if quant_out is not None or scale_out is not None:
        raise NotImplementedError(_quantised(pattern, layout_code))


def _quantised(pattern, layout_code):
    layout = "none" if layout_code is None else QuantizationSFLayout(layout_code).name
    return (f"stoker: {pattern} with a quantised output (layout {layout}) is not supported yet; pass quant_out=None "
            "and scale_out=None, and quantise norm_out in a kernel of its own")


def _check_metadata(metadata, world_size, token_num, hidden_dim):
    for name, value in (("tp_size", world_size), ("hidden_dim", hidden_dim), ("max_token_num", token_num)):
        wrong = value != metadata[name] if name == "tp_size" else value > metadata[name]
        if wrong:
            raise ValueError(f"stoker: the workspace was made for {name}={metadata[name]}; this call needs {value}")
