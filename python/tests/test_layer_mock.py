"""layer_mock.py, which is for a GPU, runs on CPU ranks too; and its parity can fail."""

import json

import layer_mock

ARGUMENTS = ["--device=cpu", "--small", "--layers=2", "--tokens=3,5", "--parts=eager,compiled"]


def test_every_way_is_as_near_to_fp32_as_the_unfused_layers(tmp_path):
    results = tmp_path / "results.jsonl"
    assert layer_mock.main([*ARGUMENTS, f"--results={results}"]) == 0
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {(line["way"], line["variant"], line["rank"]) for line in lines} == {
        (way, variant, rank) for way in ("eager", "compiled") for variant in ("deferred", "not_deferred")
        for rank in (0, 1)}
    assert all(line["places"] == 4 and 1e-4 < line["distance"] < 0.05 for line in lines)


def test_a_wrong_deferred_tail_fails(monkeypatch, capsys):
    join = layer_mock.Model.join

    def without_the_residual(self, partial, residual, gamma, variant, site):
        stream = residual if variant == "unfused" else 0.97 * residual
        return join(self, partial, stream, gamma, variant, site)

    monkeypatch.setattr(layer_mock.Model, "join", without_the_residual)
    assert layer_mock.main(ARGUMENTS) == 1
    assert "0 of 8 parities passed" in capsys.readouterr().out
