"""FlashInfer's functions over Stoker's ops: against float64 on two CPU ranks, and what they refuse."""

import inspect

import pytest
import torch

import reference
from stoker import flashinfer_compat as comm
from rank_processes import run

TOKENS, HIDDEN, TOP_K, EPS = 7, 520, 4, 1e-5
PARAMETERS = {  # flashinfer.comm.trtllm_ar, in its order
    comm.trtllm_create_ipc_workspace_for_all_reduce_fusion:
        "tp_rank tp_size max_token_num hidden_dim use_fp32_lamport group create_metadata comm_backend"
        " use_symm_dev_mem",
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion: "workspace group",
    comm.trtllm_allreduce_fusion:
        "allreduce_in world_size world_rank token_num hidden_dim workspace_ptrs launch_with_pdl"
        " trigger_completion_at_end fp32_acc pattern_code use_oneshot allreduce_out residual_in residual_out norm_out"
        " quant_out scale_out rms_gamma rms_eps scale_factor layout_code metadata block_quant_group_size weight_bias",
    comm.trtllm_moe_allreduce_fusion:
        "world_size world_rank token_num hidden_dim workspace_ptrs launch_with_pdl residual_in rms_gamma rms_eps"
        " scale_factor moe_reduction_device_num_experts moe_reduction_scale_input"
        " moe_reduction_active_experts_token_input moe_reduction_token_input layout_code moe_allreduce_out residual_out"
        " norm_out quant_out scale_out weight_bias backend",
    comm.trtllm_moe_finalize_allreduce_fusion:
        "allreduce_in residual_in norm_weight expanded_idx_to_permuted_idx norm_out residual_out quant_out scale_out"
        " workspace_ptrs launch_with_pdl world_rank world_size eps shared_expert_output expert_scale_factor"
        " routed_scaling_factor weight_bias backend",
}


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__name__)
def test_parameters_have_flashinfers_names_and_order(function):
    names = [name for name in inspect.signature(function).parameters if name != "device"]
    assert names == PARAMETERS[function].split()


def workspace(rank, world):
    return comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(rank, world, 16, HIDDEN, create_metadata=True,
                                                                 device="cpu")


def outputs(count):
    return [torch.full((TOKENS, HIDDEN), 7.0, dtype=torch.bfloat16) for _ in range(count)]


def expect(total, inputs, bias=0.0):
    """residual_out and norm_out of a float64 sum over ranks that is rounded as the contract rounds it."""
    residual = (total.bfloat16().double() + inputs["residual"].double()).bfloat16()
    x = residual.double()
    norm = x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * (bias + inputs["gamma"].double())
    return residual, norm.bfloat16()


def agree(got, wanted):
    assert reference.agree(got, wanted, fraction=0.05)


def _finalize(rank, world):
    handles, pointers, _ = workspace(rank, world)
    for scaling, weights, shared in ((2.5, True, True), (None, False, False)):
        everyone = [reference.make_inputs(TOKENS, HIDDEN, TOP_K, r, seed=3) for r in range(world)]
        for inputs in everyone:
            inputs["weights"] = inputs["weights"] if weights else torch.ones_like(inputs["weights"])
            inputs["shared"] = inputs["shared"] if shared else torch.zeros_like(inputs["shared"])
        mine = everyone[rank]
        norm, residual = outputs(2)
        comm.trtllm_moe_finalize_allreduce_fusion(
            allreduce_in=mine["rows"], residual_in=mine["residual"], norm_weight=mine["gamma"],
            expanded_idx_to_permuted_idx=mine["indices"], norm_out=norm, residual_out=residual, quant_out=None,
            scale_out=None, workspace_ptrs=pointers, launch_with_pdl=True, world_rank=rank, world_size=world, eps=EPS,
            shared_expert_output=mine["shared"] if shared else None,
            expert_scale_factor=mine["weights"] if weights else None, routed_scaling_factor=scaling, weight_bias=1.0)
        total = sum(reference.partial(inputs, scaling or 1.0).double() for inputs in everyone)
        wanted_residual, wanted_norm = expect(total, mine, bias=1.0)
        agree(residual, wanted_residual)
        agree(norm, wanted_norm)
    assert comm.health(handles) is None
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(handles)
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(handles)
    return "done"


def _min_latency(rank, world):
    """Active experts' outputs for all tokens, weights [experts, tokens], and the shared expert's rows."""
    handles, pointers, _ = workspace(rank, world)
    experts = 5
    everyone = []
    for r in range(world):
        generator = torch.Generator().manual_seed(r)
        inputs = reference.make_inputs(TOKENS, HIDDEN, TOP_K, r, seed=4)
        inputs["active"] = torch.randn(experts, TOKENS, HIDDEN, generator=generator).bfloat16()
        inputs["scale"] = torch.rand(experts, TOKENS, generator=generator)
        everyone.append(inputs)
    mine = everyone[rank]
    total_out, residual, norm = outputs(3)
    comm.trtllm_moe_allreduce_fusion(
        world, rank, TOKENS, HIDDEN, pointers, False, mine["residual"].flatten(), mine["gamma"], EPS, 1.0, experts,
        mine["scale"], mine["active"], mine["shared"], None, total_out, residual, norm, None, None)
    total = sum(((i["active"].double() * i["scale"].double().unsqueeze(-1)).sum(0) + i["shared"].double())
                .bfloat16().double() for i in everyone)
    wanted_residual, wanted_norm = expect(total, mine)
    agree(total_out, total.bfloat16())
    agree(residual, wanted_residual)
    agree(norm, wanted_norm)
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(handles)
    return "done"


def _plain(rank, world):
    handles, pointers, metadata = workspace(rank, world)
    everyone = [reference.make_inputs(TOKENS, HIDDEN, TOP_K, r, seed=5) for r in range(world)]
    mine = everyone[rank]
    total = sum(inputs["shared"].double() for inputs in everyone)
    total_out, residual, norm = outputs(3)

    def call(pattern, fp32_acc, *tensors):
        comm.trtllm_allreduce_fusion(mine["shared"], world, rank, TOKENS, HIDDEN, pointers, True, True, fp32_acc,
                                     pattern, None, *tensors, None, None, mine["gamma"], EPS, None, None, metadata)

    call(comm.AllReduceFusionPattern.kAllReduce, True, total_out, None, None, None)
    assert torch.equal(total_out, total.bfloat16())
    call(comm.AllReduceFusionPattern.kARResidualRMSNorm, True, None, mine["residual"], residual, norm)
    wanted_residual, wanted_norm = expect(total, mine)
    assert torch.equal(residual, wanted_residual)
    agree(norm, wanted_norm)
    again = outputs(3)
    call(comm.AllReduceFusionPattern.kARResidualRMSNorm, False, again[0], mine["residual"], again[1], again[2])
    assert all(torch.equal(a, b) for a, b in zip(again, (total_out, residual, norm)))
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(handles)
    return "done"


@pytest.mark.parametrize("body", [_finalize, _min_latency, _plain])
def test_two_ranks_agree_with_float64(body):
    assert run(2, body) == ["done", "done"]


@pytest.fixture
def one_rank():
    made = workspace(0, 1)
    yield made
    comm.trtllm_destroy_ipc_workspace_for_all_reduce_fusion(made[0])


def test_quantised_outputs_are_refused_by_pattern_and_layout_before_anything_is_written(one_rank):
    _, pointers, _ = one_rank
    inputs = reference.make_inputs(TOKENS, HIDDEN, TOP_K, 0)
    residual, norm = outputs(2)
    quant = torch.zeros(TOKENS, HIDDEN, dtype=torch.uint8)

    def plain(pattern, quant_out):
        comm.trtllm_allreduce_fusion(inputs["shared"], 1, 0, TOKENS, HIDDEN, pointers, True, True, True, pattern, None,
                                     None, inputs["residual"], residual, norm, quant_out, None, inputs["gamma"], EPS,
                                     None, comm.QuantizationSFLayout.LINEAR)

    with pytest.raises(NotImplementedError, match="kARResidualRMSNormOutFP4Quant.*LINEAR"):
        plain(5, None)
    with pytest.raises(NotImplementedError, match="kARResidualRMSNorm with.*LINEAR"):
        plain(1, quant)
    with pytest.raises(NotImplementedError, match="trtllm_moe_finalize"):
        comm.trtllm_moe_finalize_allreduce_fusion(
            inputs["rows"], inputs["residual"], inputs["gamma"], inputs["indices"], norm, residual, None, quant,
            pointers, True, 0, 1, EPS, None, None, None)
    with pytest.raises(NotImplementedError, match="trtllm_moe_allreduce_fusion.*SWIZZLED_128x4"):
        comm.trtllm_moe_allreduce_fusion(1, 0, TOKENS, HIDDEN, pointers, True, inputs["residual"], inputs["gamma"], EPS,
                                         1.0, 1, inputs["weights"][:, :1], inputs["rows"], inputs["shared"], 0, None,
                                         residual, norm, quant, None)
    assert torch.equal(residual, outputs(1)[0]) and torch.equal(norm, outputs(1)[0])


def test_what_is_not_supported_is_named(one_rank):
    _, pointers, metadata = one_rank
    inputs = reference.make_inputs(TOKENS, HIDDEN, TOP_K, 0)
    create = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion
    with pytest.raises(NotImplementedError, match="use_fp32_lamport"):
        create(0, 1, 8, 64, use_fp32_lamport=True, device="cpu")
    with pytest.raises(NotImplementedError, match="use_symm_dev_mem"):
        create(0, 1, 8, 64, use_symm_dev_mem=True, device="cpu")

    def plain(pattern, world=1, tokens=TOKENS, workspace_ptrs=pointers):
        comm.trtllm_allreduce_fusion(inputs["shared"], world, 0, tokens, HIDDEN, workspace_ptrs, True, True, True,
                                     pattern, None, None, None, None, None, None, None, inputs["gamma"], EPS, None,
                                     None, metadata)

    with pytest.raises(ValueError, match="needs allreduce_out"):
        plain(0)
    with pytest.raises(ValueError, match="needs residual_in, residual_out, norm_out"):
        plain(1)
    with pytest.raises(ValueError, match="made for tp_size=1; this call needs 2"):
        plain(0, world=2)
    with pytest.raises(ValueError, match="made for max_token_num=16; this call needs 17"):
        plain(0, tokens=17)
    with pytest.raises(ValueError, match="is not the tensor that"):
        plain(0, workspace_ptrs=torch.zeros(9, dtype=torch.int64))
