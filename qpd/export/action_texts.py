"""Write code for READMEs and cards that reads a runtime's outputs, by the kind of actions."""

from __future__ import annotations

from qpd.actions import Box, MultiBinary, MultiDiscrete
from qpd.integer.integer_student import IntegerStudent


def onnx_texts(student: IntegerStudent) -> dict[str, str]:
    """Return the fields of onnx.md and card_onnx.md that depend on the actions."""
    inputs = 'session.run(None, {"observations": observations})'
    if isinstance(student.actions, Box):
        read = f"actions, codes = {inputs}  # float32 [batch, ...], uint8 [batch, numbers]"
    else:
        read = (
            f"logits = {inputs}[0]  # float32 [batch, {_logits(student)}]\n"
            f"actions = {_from_logits(student)}"
        )
    return {"read_actions": read, **_meaning(student)}


def litert_texts(student: IntegerStudent) -> dict[str, str]:
    """Return the fields of litert_*.md that depend on the actions."""
    if isinstance(student.actions, Box):
        read = (
            "actions = interpreter.get_tensor(target)  # float32 [1, ...], in real units\n"
            'codes = interpreter.get_tensor(interpreter.get_output_details()[1]["index"])  # uint8'
        )
    else:
        read = (
            f"logits = interpreter.get_tensor(target)  # float32 [1, {_logits(student)}]\n"
            f"actions = {_from_logits(student)}"
        )
    return {"read_actions": read, **_meaning(student)}


def bin_texts(student: IntegerStudent) -> dict[str, str]:
    """Return the fields of bin.md and card_bin.md that depend on the actions."""
    if isinstance(student.actions, Box):
        act = {
            "reader_names": "actions_of, integer_outputs, load, values_of",
            "reader_actions": "codes = actions_of(student, outputs)  # uint8\n"
            "print(values_of(student, codes))  # float32, in the environment's units",
            "acting": "`values_of` says which actions the codes are",
        }
    else:
        act = {
            "reader_names": "actions_of, integer_outputs, load",
            "reader_actions": "print(actions_of(student, outputs))",
        }
    return {**_meaning(student), **act}


def sb3_texts(student: IntegerStudent) -> dict[str, str]:
    """Return the fields of sb3_*.md and card_sb3_*.md that depend on the actions."""
    if isinstance(student.actions, Box):
        return {
            "equal_outputs": "actions equal",
            "sampling": " It does not sample: its deviation is 2e-9.",
        }
    return {"equal_outputs": "logits equal", "sampling": ""}


def c_texts(student: IntegerStudent) -> dict[str, str]:
    """Return the fields of card_c.md that depend on the actions."""
    if isinstance(student.actions, Box):
        act = (
            "    qpd_action codes[QPD_ACTIONS];\n"
            "    qpd_act(observation, codes);\n"
            "    for (uint16_t i = 0; i < QPD_ACTIONS; ++i) {\n"
            "        double value = qpd_action_value(codes[i], i); /* the environment's units */\n"
            "        long dac = qpd_action_scaled(codes[i], 0, 4095);\n"
            '        printf("code %d of %d: %g, %ld\\n", codes[i], QPD_ACTION_TOP, value, dac);\n'
            "    }"
        )
        return {"act": act}
    if isinstance(student.actions, MultiBinary | MultiDiscrete):
        act = (
            "    qpd_action action[QPD_ACTIONS];\n"
            "    qpd_act(observation, action);\n"
            "    for (int i = 0; i < QPD_ACTIONS; ++i) {\n"
            '        printf("%d ", action[i]);\n'
            "    }\n"
            '    printf("\\n");'
        )
        return {"act": act}
    act = (
        "    int32_t logits[QPD_ACTIONS];\n"
        "    int action = qpd_act(observation, logits);\n"
        '    printf("action %d of %d\\n", action, QPD_ACTIONS);'
    )
    return {"act": act}


def _logits(student: IntegerStudent) -> str:
    return "switches" if isinstance(student.actions, MultiBinary) else "actions"


def _from_logits(student: IntegerStudent) -> str:
    actions = student.actions
    if isinstance(actions, MultiBinary):
        return "(logits > 0).astype(np.int64)"
    if isinstance(actions, MultiDiscrete):
        ends = [sum(actions.nvec[: i + 1]) for i in range(len(actions.nvec) - 1)]
        return f"np.stack([part.argmax(1) for part in np.split(logits, {ends}, axis=1)], axis=1)"
    return "logits.argmax(1)"


def _meaning(student: IntegerStudent) -> dict[str, str]:
    """Return what the outputs are worth, as a sentence."""
    if isinstance(student.actions, Box):
        top = 2**student.action_bits - 1
        text = (
            f"Codes 0 to {top} are the actions as a DAC takes them: equal steps from the lower to "
            "the upper bound"
        )
    else:
        text = f"Logits are int32 accumulators times {student.output_scale!r}"
    return {"outputs_meaning": text}
