"""ONNX, LiteRT and Stable-Baselines3 exports: the same integers in every runtime."""

import os
import re
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.device.runtime_policies import (
    litert_policy,
    onnx_float_policy,
    onnx_policy,
    sb3_policy,
)
from qpd.actions import ActingRule, Discrete
from qpd.cli import main
from qpd.environments.registry import make_vector_env
from qpd.evaluation.played_observations import played_observations
from qpd.export.bundle import (
    ExportError,
    ExportSource,
    golden_vectors,
    load_export_source,
    write_bundle,
)
from qpd.export.litert_flatbuffer import export_litert
from qpd.export.onnx_graph import (
    PAIR_BOUND,
    export_onnx,
    largest_pair,
    paired_channels,
    quantized_graph,
    wraps_on_arm,
)
from qpd.export.sb3_zip import export_sb3
from qpd.export.signed_bytes import signed_layer
from qpd.integer.integer_student import (
    IntegerEngine,
    IntegerLayer,
    IntegerStudent,
    fixed_point,
    reference_outputs,
)
from qpd.students import StudentArchitecture

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs-reference"
EXPORTERS = {"onnx": export_onnx, "litert": export_litert, "sb3": export_sb3}
POLICIES = {
    "onnx": ("onnx", onnx_policy),
    "onnx-fp32": ("onnx", onnx_float_policy),
    "litert": ("litert", litert_policy),
    "sb3": ("sb3", sb3_policy),
}
STUDENTS = ["breakout-ppo-xxs", "breakout-ppo-xxs-4bit", "breakout-ppo-xxs-2bit",
            "classic-ppo-cartpole", "classic-qrdqn-lunarlander"]  # fmt: skip


@pytest.mark.parametrize("kernels", ["AUTO", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def test_litert_saturates_far_from_the_range(kernels):
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    source = load_export_source(RUNS / "classic-ppo-cartpole")
    far = [np.inf, -np.inf, 1e10, -1e10, 3e38, -3e38]
    # What XNNPACK, of AUTO, makes of NaN is its own.
    far += [np.nan] if kernels != "AUTO" else []
    rows = np.concatenate([np.where(np.eye(4, dtype=bool), value, 0.01) for value in far])
    rows = rows.astype(np.float32)
    interpreter = interpreters.Interpreter(
        model_content=export_litert(source, golden_vectors(source.student))["student.tflite"],
        num_threads=1,
        experimental_op_resolver_type=getattr(interpreters.OpResolverType, kernels),
    )
    place = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(place, rows.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, rows)
    interpreter.invoke()
    logits = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    wanted = reference_outputs(source.student, rows) * source.student.output_scale
    np.testing.assert_allclose(logits, wanted, atol=0.02 * np.ptp(wanted))
    assert (logits.argmax(1) == wanted.argmax(1)).all()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """bundle(run, target): the folder of an export, made once."""
    root = tmp_path_factory.mktemp("exports")

    def make(run: str, target: str) -> Path:
        folder = root / run / target
        if not folder.exists():
            source = load_export_source(RUNS / run)
            files = EXPORTERS[target](source, golden_vectors(source.student))
            write_bundle(folder, target, source, files)
        return folder

    return make


@cache
def real_observations(run: str, count: int = 96) -> np.ndarray:
    """Return play's observations (XXS for all of Breakout), or vectors beyond their range."""
    if run.startswith("breakout-ppo-xxs-"):
        return real_observations("breakout-ppo-xxs")
    source = load_export_source(RUNS / run)
    engine = IntegerEngine(source.student)
    with closing(make_vector_env(str(source.about["env_id"]), 8)) as env:
        observations = played_observations(engine, env, count, ActingRule("greedy"), 3)
    if source.student.input_low is not None:
        observations = np.concatenate([observations, observations * 50])
    return observations


def student_of_bits(
    weight_bits: int, top: int, convolutions: tuple[int, ...] = (4, 6, 8)
) -> IntegerStudent:
    """A student of random odd integers over their whole range, its activations well spread."""
    rng = np.random.default_rng(0)
    architecture = StudentArchitecture((4, 84, 84), 5, convolutions, (16,))
    observations = golden_vectors_for_fitting(architecture)
    layers: list[IntegerLayer] = []
    for shape in architecture.layer_shapes():
        weight = 2 * rng.integers(0, 2**weight_bits, shape.weight_shape) - (2**weight_bits - 1)
        weight = weight.astype(np.int16)
        out = shape.weight_shape[0]
        bias = rng.integers(-1000, 1000, out).astype(np.int32)
        # Read the accumulators as logits of a student that ends here.
        probe = IntegerLayer(shape, weight_bits, weight, bias, None, None, top)
        spread = np.abs(reference_logits_of(architecture, [*layers, probe], observations)).mean()
        if shape.name == "actor":
            layers.append(probe)
            return IntegerStudent(
                architecture,
                tuple(layers),
                10.0 / float(spread),
                Discrete(architecture.num_outputs),
            )
        multiplier, shift = fixed_point(rng.uniform(0.3, 1.0, out) * top / spread)
        layers.append(IntegerLayer(shape, weight_bits, weight, bias, multiplier, shift, top))
    raise AssertionError("the last layer is the actor head")


def golden_vectors_for_fitting(architecture: StudentArchitecture) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (2, *architecture.observation_shape), dtype=np.uint8)


def reference_logits_of(
    architecture: StudentArchitecture, layers: list[IntegerLayer], observations: np.ndarray
) -> np.ndarray:
    actions = Discrete(architecture.num_outputs)
    student = IntegerStudent(architecture, tuple(layers), 1.0, actions)
    return reference_outputs(student, observations)


@pytest.mark.parametrize("bits", range(2, 9))
def test_signed_bytes_give_the_same_sums_for_every_weight_and_input(bits: int) -> None:
    """All odd integers of `bits` against all pairs of inputs: nothing is rounded."""
    odd = np.arange(-(2**bits - 1), 2**bits, 2)
    weight = np.stack([odd, odd[::-1]], axis=1).astype(np.int16)
    shape = student_shape(weight.shape)
    layer = IntegerLayer(shape, bits, weight, np.zeros(len(weight), np.int32), None, None, 255)
    signed = signed_layer(layer)
    assert signed.weight.dtype == np.int8 and signed.reads_complement == (bits == 8)
    x = np.random.default_rng(0).integers(0, 256, (64, 2))
    x[:4] = [[0, 0], [255, 255], [0, 255], [255, 0]]
    inputs = np.concatenate([x, 255 - x], axis=1) if signed.reads_complement else x
    ours = inputs @ signed.weight.T.astype(np.int64) + signed.bias
    np.testing.assert_array_equal(ours, x @ weight.T.astype(np.int64))


def test_a_weight_that_two_signed_bytes_cannot_hold_is_one_line() -> None:
    weight = np.array([[-256, 254]], dtype=np.int16)
    shape = student_shape(weight.shape)
    layer = IntegerLayer(shape, 8, weight, np.zeros(1, np.int32), None, None, 255)
    with pytest.raises(ExportError, match=r"^linear1: a weight of -256 .*; expected c, bin or sys"):
        signed_layer(layer)


def student_shape(weight_shape: tuple[int, ...]):
    from qpd.students import LayerShape

    return LayerShape("linear1", "linear", weight_shape, 1, (weight_shape[0],))


@pytest.mark.parametrize("run", STUDENTS)
@pytest.mark.parametrize("runtime", POLICIES)
def test_logits_are_the_engines_on_real_observations(bundle, run: str, runtime: str) -> None:
    """Equal integers on 99% of observations (a factor of 24 bits may round a tie otherwise)."""
    target, load = POLICIES[runtime]
    student = load_export_source(RUNS / run).student
    observations = real_observations(run)
    logits = load(bundle(run, target))(observations)
    wanted = reference_outputs(student, observations)
    integers = np.round(logits.astype(np.float64) / student.output_scale)
    assert (logits.argmax(1) == wanted.argmax(1)).all()
    assert (integers == wanted).all(1).mean() >= 0.99
    if runtime == "sb3":
        np.testing.assert_array_equal(logits, IntegerEngine(student)(observations))


@pytest.mark.parametrize(("bits", "top"), [(8, 255), (8, 3), (7, 127), (3, 7), (5, 31), (6, 63)])
def test_every_width_reaches_its_extremes(tmp_path: Path, bits: int, top: int) -> None:
    """Random weights over the whole range, activations that saturate at both ends."""
    assert_runtimes_agree(student_of_bits(bits, top), tmp_path)


@pytest.mark.parametrize("convolutions", [(4, 6, 8, 10), (3, 5, 8, 8, 12)])
def test_more_than_three_convolutions(tmp_path: Path, convolutions: tuple[int, ...]) -> None:
    assert_runtimes_agree(student_of_bits(7, 127, convolutions), tmp_path)


def assert_runtimes_agree(student: IntegerStudent, tmp_path: Path) -> None:
    source = ExportSource(student, {}, "random")
    golden = golden_vectors(source.student, seed=1)
    assert len(np.unique(golden.logits)) > 5
    for target, export in EXPORTERS.items():
        write_bundle(tmp_path / target, target, source, export(source, golden))
    for runtime, (target, load) in POLICIES.items():
        logits = load(tmp_path / target)(golden.observations)
        integers = np.round(logits.astype(np.float64) / source.student.output_scale)
        error = np.abs(integers - golden.logits).max() / np.ptp(golden.logits)
        assert error < 5e-3, runtime  # a level rounded the other way, not an overflow


def optimized_operators(model: bytes, folder: Path) -> list[str]:
    """List the operators that ONNX Runtime really runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("run", STUDENTS)
def test_onnx_runtime_fuses_every_layer_into_an_integer_kernel(tmp_path: Path, run: str) -> None:
    source = load_export_source(RUNS / run)
    model = quantized_graph(source, {}).SerializeToString()
    operators = optimized_operators(model, tmp_path)
    kinds = [layer.shape.kind for layer in source.student.layers]
    assert operators.count("QLinearConv") == kinds.count("conv")
    assert operators.count("QGemm") == kinds.count("linear")
    moves = {"BitwiseNot", "Concat", "Transpose", "Flatten", "Clip", "Unsqueeze", "Reshape"}
    encoding = {"Sub", "Div", "Clip", "Mul", "QuantizeLinear"}
    allowed = moves if source.student.architecture.is_image else moves | encoding
    assert set(operators) - {"QLinearConv", "QGemm"} <= allowed


def test_onnx_files_say_what_they_are(bundle) -> None:
    folder = bundle("breakout-ppo-xxs", "onnx")
    for name in ("student_int8.onnx", "student_fp32.onnx"):
        model = onnx.load(folder / name)
        onnx.checker.check_model(model, full_check=True)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        assert (model.producer_name, model.opset_import[0].version) == ("qpd", 18)
        assert metadata["env_id"] == "BreakoutNoFrameskip-v4"
        assert metadata["actions"] == '["NOOP", "FIRE", "RIGHT", "LEFT"]'
        assert float(metadata["logit_scale"]) > 0
        shapes = {value.name: value for value in model.graph.value_info}
        assert "linear1_output" in shapes or "linear1_scaled" in shapes  # shapes for viewers


def test_int8_models_hold_no_float_weights(bundle) -> None:
    """36 thousand weights, most of them twice at 8 bits: no float copy hides in the file."""
    onnx_bytes = (bundle("breakout-ppo-xxs-4bit", "onnx") / "student_int8.onnx").stat().st_size
    litert_bytes = (bundle("breakout-ppo-xxs-4bit", "litert") / "student.tflite").stat().st_size
    assert max(onnx_bytes, litert_bytes) < 35_796 + 8_000


def weights_of(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each layer's stored weights with their zero points."""
    model = onnx.load(path)
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    stored = {name for name in held if name.endswith("_weight_integers")}
    return {
        name.removesuffix("_weight_integers"): (held[name], held[name.replace("integers", "zero")])
        for name in stored
    }


def sums_in_pairs(levels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sum up `[n, inputs]` times `[out, inputs]` as x86 without VNNI: pairs saturate at 16 bits."""
    products = levels[:, None].astype(np.int64) * weight[None].astype(np.int64)
    pairs = products.reshape(*products.shape[:2], -1, 2).sum(-1)
    return pairs.clip(-(2**15), 2**15 - 1).sum(-1)


@pytest.mark.parametrize("run", ["breakout-ppo-xxs", "breakout-ppo-xxs-4bit"])
def test_onnx_weights_overflow_on_no_x86(bundle, run: str) -> None:
    """Kernels for int8 weights add neighbouring channels' products in 16 bits without VNNI."""
    weights, draw = weights_of(bundle(run, "onnx") / "student_int8.onnx"), np.random.default_rng(0)
    assert len(weights) == 5
    top = 255 if run == "breakout-ppo-xxs" else 15
    for name, (weight, zero) in weights.items():
        if name.startswith("conv"):
            assert weight.dtype == zero.dtype == np.int8 and not zero.any()
            # Kernels go through positions, and through channels at each.
            rows = weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)
            levels = draw.choice([0, 1, top - 1, top], size=(50, rows.shape[1]))
            if top == 255:
                levels[:, 1::2] = 255 - levels[:, ::2]
            elif name == "conv1":
                levels = levels * 17  # frames have all levels
            np.testing.assert_array_equal(
                sums_in_pairs(levels, rows), levels @ rows.astype(np.int64).T
            )
        else:
            assert weight.dtype == zero.dtype == np.uint8 and (zero == 128).all()


def test_two_least_weights_eight_apart_wrap_on_arm() -> None:
    weight = np.zeros((1, 4, 2, 2), np.int8)  # rows go through 4 channels at each of 4 positions
    weight[0, 1, 0, 0] = -128
    assert not wraps_on_arm(weight)
    weight[0, 1, 0, 1] = -128  # 4 further
    assert not wraps_on_arm(weight)
    weight[0, 1, 1, 0] = -128  # 8 further than the first
    assert wraps_on_arm(weight)


def test_a_batch_may_be_empty(bundle) -> None:
    session = onnxruntime.InferenceSession(bundle("breakout-ppo-xxs", "onnx") / "student_int8.onnx")
    observations = np.zeros((0, 4, 84, 84), np.uint8)
    assert session.run(None, {"observations": observations})[0].shape == (0, 4)


def test_pairs_are_bounded_by_hand() -> None:
    weight = np.array([[100, 29, -5], [3, -64, -65]], np.int8)
    assert largest_pair(weight, 255) == 129 * 255 > PAIR_BOUND
    assert largest_pair(weight, 15) == 129 * 15
    both = np.arange(8).reshape(1, 4, 2)  # channels 0, 1, then their complements'
    assert paired_channels(both).reshape(-1).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    levels = np.array([[255, 255]])
    assert sums_in_pairs(levels, np.array([[100, 29]])) != 129 * 255  # what this is for


def test_litert_buffers_lie_where_kernels_read_them(bundle) -> None:
    """At multiples of 16 bytes, as the schema asks: ARM faults on int32 biases that do not."""
    from ai_edge_litert import schema_py_generated as schema

    content = np.fromfile(bundle("breakout-ppo-xxs", "litert") / "student.tflite", np.uint8)
    model = schema.Model.GetRootAs(content, 0)
    starts = []
    for index in range(model.BuffersLength()):
        if model.Buffers(index).DataLength():
            data = model.Buffers(index).DataAsNumpy()
            starts.append(data.__array_interface__["data"][0] - content.ctypes.data)
    assert len(starts) > 10 and all(start % 16 == 0 for start in starts)


@pytest.mark.parametrize("run", ["breakout-ppo-xxs", "breakout-ppo-xxs-4bit"])
def test_litert_takes_batches_after_resizing(bundle, run: str) -> None:
    from ai_edge_litert.interpreter import Interpreter

    folder, observations = bundle(run, "litert"), real_observations(run)[:7]
    interpreter = Interpreter(str(folder / "student.tflite"), num_threads=1)
    source = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(source, [7, 84, 84, 4])
    interpreter.allocate_tensors()
    last = np.ascontiguousarray(observations.transpose(0, 2, 3, 1) ^ 128).view(np.int8)
    interpreter.set_tensor(source, last)
    interpreter.invoke()
    logits = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(logits, litert_policy(folder)(observations))


@pytest.mark.parametrize(
    ("run", "target"),
    [("breakout-ppo-xxs", "onnx"), ("breakout-ppo-xxs", "litert"), ("classic-dqn-cartpole", "onnx"),
     ("classic-dqn-cartpole", "litert"),
     pytest.param("classic-dqn-cartpole", "sb3", marks=pytest.mark.slow),
     pytest.param("breakout-ppo-xxs", "sb3", marks=pytest.mark.slow)],  # plays a whole game
)  # fmt: skip
def test_readme_code_and_self_test_run_in_the_bundle(bundle, run: str, target: str) -> None:
    folder = bundle(run, target)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    run_here = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    tested = subprocess.run([sys.executable, "selftest.py"], **run_here)
    assert tested.returncode == 0 and "ok" in tested.stdout, tested.stdout + tested.stderr
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1 and "$" not in blocks[0]
    shown = subprocess.run([sys.executable, "-c", blocks[0]], **run_here)
    assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr


@pytest.mark.parametrize("target", ["onnx", "litert"])
def test_self_test_finds_a_wrong_model(bundle, tmp_path: Path, target: str) -> None:
    """Golden vectors of another student: the self-test must fail."""
    import shutil

    folder = tmp_path / "wrong"
    shutil.copytree(bundle("breakout-ppo-xxs", target), folder)
    other = bundle("breakout-ppo-xxs-4bit", target) / "golden.npz"
    shutil.copy(other, folder / "golden.npz")
    tested = subprocess.run([sys.executable, "selftest.py"], cwd=folder, capture_output=True)
    assert tested.returncode == 1 and b"FAILED" in tested.stdout


def test_cli_exports_and_refuses(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "out"
    with pytest.raises(SystemExit) as done:
        main(["export", str(RUNS / "classic-ppo-cartpole"), "--format", "onnx", "-o", str(folder)])
    assert done.value.code == 0
    assert (folder / "manifest.json").is_file() and (folder / "student_int8.onnx").is_file()
    with pytest.raises(SystemExit) as refused:
        main(["export", str(tmp_path / "none"), "--format", "onnx", "-o", str(folder)])
    assert refused.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("package", "target", "extra"),
    [("onnx", "onnx", "onnx"), ("ai_edge_litert", "litert", "litert"),
     ("stable_baselines3", "sb3", "train")],
)  # fmt: skip
def test_missing_package_names_its_extra(
    monkeypatch, tmp_path: Path, capsys, package: str, target: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what an import of nothing installed meets
    folder = tmp_path / "out"
    with pytest.raises(SystemExit) as refused:
        main(["export", str(RUNS / "classic-ppo-cartpole"), "--format", target, "-o", str(folder)])
    lines = capsys.readouterr().err.strip().splitlines()
    assert refused.value.code == 2 and not folder.exists()
    assert len(lines) == 1 and f'pip install "qpd-rl[{extra}]"' in lines[0]
