"""Read the RL Zoo's `args.yml` and `config.yml` without building python objects.

The zoo dumps an OrderedDict, which YAML writes as
`!!python/object/apply:collections.OrderedDict [[[key, value], ...]]`. Its own reader
executes such tags; here every python tag is dropped and only its plain content kept.
"""

from pathlib import Path
from typing import Any

import yaml

from qpd.errors.codes import ErrorCode
from qpd.files.bounded_read import TooLargeError, read_file
from qpd.teachers.archive.errors import TeacherError, one_line

MAX_YAML_BYTES = 1 << 16  # the zoo's take 1 kB


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader that reads the content under a python tag as if the tag were not there.

    Merge keys are refused: the zoo writes none, and nested ones grow without bound. Aliases are
    read: what they name is built once, however often it is named.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse `<<`; called by SafeLoader for each mapping."""
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys ('<<') are refused", key.start_mark
                )


def _plain_content(loader: _PlainLoader, tag_suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain_content)


def read_zoo_yaml(path: Path) -> dict[str, Any]:
    """Return the settings of an `args.yml` or `config.yml`; TeacherError if it is neither."""
    try:
        text = read_file(path, MAX_YAML_BYTES).decode("utf-8")
        content = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)
    except TooLargeError as error:
        raise TeacherError(
            f"{path}: larger than {MAX_YAML_BYTES} bytes; not RL Zoo settings",
            ErrorCode.TEACHER_SETTINGS,
        ) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise TeacherError(
            f"{path}: not readable as RL Zoo settings ({one_line(error)})",
            ErrorCode.TEACHER_SETTINGS,
        ) from error
    return _as_settings(content, path)


def _as_settings(content: object, path: Path) -> dict[str, Any]:
    # config.yml of some versions is a plain mapping, the rest an OrderedDict: [[key, value], ...].
    if isinstance(content, dict):
        return {key: value for key, value in content.items() if isinstance(key, str)}
    pairs = content[0] if isinstance(content, list) and len(content) == 1 else None
    if isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return {key: value for key, value in pairs if isinstance(key, str)}
    raise TeacherError(
        f"{path}: contains no settings; expected the mapping that the RL Zoo writes",
        ErrorCode.TEACHER_SETTINGS,
    )
