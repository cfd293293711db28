"""What `stoker doctor` says of a model's config, and of configs that it cannot judge."""

import json

import pytest

from stoker import doctor

QWEN = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2048, "num_experts": 128,
        "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "bfloat16"}


def reasons(config, ranks=2, group=None):
    return dict(doctor.judge(config, ranks, group))


def test_every_sum_of_a_plain_mixture_is_fused():
    assert reasons(QWEN) == {f"layer {layer} {what}": None for layer in range(4) for what in ("attention", "experts")}


@pytest.mark.parametrize("change, dense", [
    ({"mlp_only_layers": [1]}, [1]),
    ({"decoder_sparse_step": 2}, [0, 2]),
    ({"num_experts": None, "n_routed_experts": 64, "first_k_dense_replace": 3}, [0, 1, 2]),
    ({"num_experts": 0}, [0, 1, 2, 3]),
])
def test_dense_layers_keep_their_sum_after_the_mlp(change, dense):
    got = reasons(QWEN | change)
    assert [layer for layer in range(4) if got[f"layer {layer} experts"] is not None] == dense
    assert all(got[f"layer {layer} attention"] is None for layer in range(4))
    assert all(got[f"layer {layer} experts"] == "no mixture of experts" for layer in dense)


@pytest.mark.parametrize("change, ranks, words", [
    ({"hidden_size": 2044}, 2, "hidden size 2044; supported: multiples of 8"),
    ({"hidden_size": 32768}, 2, "up to 16384"),
    ({"num_experts_per_tok": 33}, 2, "33 experts a token; supported: up to 32"),
    ({"torch_dtype": "float32"}, 2, "dtype float32"),
    ({}, 9, "9 ranks: 1 to 8"),
    ({}, 1, "one rank"),
])
def test_what_holds_for_all_layers_is_said_of_all(change, ranks, words):
    got = set(reasons(QWEN | change, ranks).values())
    assert len(got) == 1 and words in got.pop()


def test_the_reason_of_the_group_comes_first():
    assert set(reasons(QWEN, group="no peer access").values()) == {"no peer access"}


@pytest.mark.parametrize("text, words", [
    ("{", "config.json"),
    ("[]", "an object is needed"),
    (json.dumps(QWEN | {"num_hidden_layers": -1}), "num_hidden_layers is -1; a number from 1"),
    (json.dumps(QWEN | {"hidden_size": "big"}), "hidden_size is 'big'"),
])
def test_a_bad_config_is_named_with_its_key(tmp_path, capsys, text, words):
    (tmp_path / "config.json").write_text(text)
    assert doctor.main(["--model", str(tmp_path), "--gpu", "sm_90"]) == 2
    assert words in capsys.readouterr().out


def test_the_summary_counts_and_groups(capsys):
    places = [(f"layer {layer} {kind}", reason) for layer, kind, reason in (
        (0, "attention", None), (0, "experts", "dense"), (1, "attention", None), (1, "experts", None),
        (2, "attention", "why"), (2, "experts", None), (3, "attention", None), (3, "experts", "dense"))]
    assert doctor.summary(places) == [
        "fused: 5 of 8 sums over ranks: attention of layers 0-1, 3, experts of layers 1-2",
        "  not experts of layers 0, 3: dense", "  not attention of layer 2: why"]
    assert doctor.summary(places[1:2])[0] == "fused: 0 of 1 sums over ranks"


def test_gpus_that_do_not_reach_each_other_keep_the_plug_in_off(monkeypatch):
    monkeypatch.setenv("STOKER_VLLM", "on")
    assert doctor.plug_in_reason(QWEN, 2, "sm_90") is None
    assert "no peer access" in doctor.plug_in_reason(QWEN, 2, "sm_90", peers=False)
    monkeypatch.setattr(doctor.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(doctor.torch.cuda, "can_device_access_peer", lambda a, b: a == 0)
    assert not doctor.peer_access(2) and doctor.peer_access(4)  # 4: too few are here to tell
    monkeypatch.setenv("STOKER_VLLM_TIERS", "none")
    assert "letters of A, B and C" in doctor.plug_in_reason(QWEN, 2, "sm_90")


def test_the_installation_is_described_without_a_model(capsys):
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert "torch " in said and "ABI: torch's stable one, of 2.10 and later; CUDA 13" in said


@pytest.mark.parametrize("words, refusal", [
    (["--ranks", "9"], "give --model too"),
    (["--gpu", "sm_12"], "give --model too"),
    (["--model", "m", "--gpu", "h100"], "--gpu h100: cpu, or an architecture"),
    (["--model", "m", "--ranks", "0"], "--ranks 0: at least 1"),
])
def test_flags_that_would_do_nothing_are_refused(capsys, words, refusal):
    with pytest.raises(SystemExit) as ended:
        doctor.main(words)
    assert ended.value.code == 2
    assert refusal in capsys.readouterr().err
