"""load_teacher(): SB3 zip, RL Zoo folder or hub id -> a frozen Teacher."""

import copy
import hashlib
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qpd.actions import ActionSpace, Box
from qpd.errors.codes import ErrorCode
from qpd.recipe.schema import TeacherSettings
from qpd.teachers.agent_actions import choose_actions
from qpd.teachers.agent_observations import choose_observations, shown_parts
from qpd.teachers.archive.agent_identity import choose_algo, refuse_unsupported
from qpd.teachers.archive.algorithm import SEARCH_ALGORITHM
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.plain_data import read_policy_option
from qpd.teachers.archive.sb3_archive import Sb3Archive, read_sb3_archive
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.archive.stored_quantization import StoredQuantization, read_quantization
from qpd.teachers.archive.vec_normalize import ObservationNormalization, read_vec_normalize
from qpd.teachers.networks.actor import actor_modules
from qpd.teachers.networks.actor_critic import ActorCriticNetwork
from qpd.teachers.networks.build import (
    Network,
    activation_name,
    build_network,
    output_size,
)
from qpd.teachers.networks.continuous import ContinuousNetwork
from qpd.teachers.networks.features import NatureCnn
from qpd.teachers.networks.quantized import quantize_layers
from qpd.teachers.sources.environment_ids import current_environment_id
from qpd.teachers.sources.teacher_source import TeacherFiles, find_teacher_files

_MAX_OUTPUT = 1e18  # the critic's loss squares values, and float32 ends at 3.4e38


class TeacherOutputs(NamedTuple):
    """A teacher's outputs for a batch of observations."""

    labels: Tensor  # float32 [batch, num_labels], what `qpd.actions` says of its actions
    # float32 [batch]: an actor-critic's V; max_a Q for DQN and QR-DQN; for SAC, TQC, TD3 and DDPG
    # the least of the critics' Q at the deterministic action (TQC's: means of quantiles); ARS: 0.
    values: Tensor


class Teacher(nn.Module):
    """A frozen SB3 agent: always in eval mode, no parameter requires a gradient.

    Attributes:
        algo: `ppo`, `a2c`, `trpo`, `ars`, `dqn`, `qrdqn`, `sac`, `tqc`, `td3` or `ddpg`.
        env_id: the environment it plays, None if unknown.
        actions: the actions it takes, and what its labels mean.
        has_critic: `values` are a critic's; False: no more than the best Q-value, or 0 (ARS).
        observation_shape: shape of one observation, such as (4, 84, 84).
        appended_zeros: features of its network that observations end before; they are 0.
        is_image: observations are uint8 images, channels first; else float32 vectors.
        image_shape: of the image, also of one that such vectors begin with (a Dict's); else None.
        sha256: of the zip (of `data` + `policy.pth` for an unpacked folder), and of the
            normalization where there is one.
        source: what load_teacher was given.
        num_parameters: weights and biases, critic included, nothing counted twice.
        num_timesteps: agent steps it was trained for, None where unknown.
        normalization: statistics applied to observations inside forward, or None.
        scales_images: uint8 images are divided by 255 inside forward.
        activation: class of the hidden layers' activations, such as `Tanh`.
        quantization: how an agent that was trained to be quantized plays; None: in float.
        files: where all this was read, and what lies beside it.
    """

    def __init__(
        self,
        network: Network,
        *,
        algo: str,
        activation: str,
        env_id: str | None,
        actions: ActionSpace,
        observation_shape: tuple[int, ...],
        image_shape: tuple[int, ...] | None,
        scales_images: bool,
        archive: Sb3Archive,
        files: TeacherFiles,
        normalization: ObservationNormalization | None,
        quantization: StoredQuantization | StoredController | None = None,
    ) -> None:
        """Freeze `network`; the fields are described above."""
        super().__init__()
        self.network = network
        self.algo = algo
        self.activation = activation
        self.env_id = env_id
        self.actions = actions
        self.has_critic = not actions.has_values and algo != SEARCH_ALGORITHM
        self.observation_shape = observation_shape
        self.appended_zeros = 0
        self.image_shape = image_shape
        self.is_image = image_shape == observation_shape
        self.quantization = quantization
        self.sha256 = _identity(archive.sha256, normalization, quantization)
        self.files = files
        self.source = files.source
        self.num_timesteps = archive.num_timesteps
        self.num_parameters = sum(p.numel() for p in network.parameters())
        self.normalization = normalization
        self.scales_images = scales_images
        self._dtype = torch.float32
        self._register_normalization(normalization)
        self.requires_grad_(False)
        self.train(False)

    def _register_normalization(self, normalization: ObservationNormalization | None) -> None:
        self._mean: Tensor | None
        self._deviation: Tensor | None
        self._clip: Tensor | None
        if normalization is None:
            self._mean = self._deviation = self._clip = None
            return
        # Once here instead of at every step.
        self.register_buffer("_mean", torch.from_numpy(normalization.mean.copy()))
        self.register_buffer("_deviation", torch.from_numpy(normalization.deviation))
        self.register_buffer("_clip", torch.as_tensor(normalization.clip_obs, dtype=torch.float64))

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """Return the widths of the actor's hidden layers, without those of a NatureCNN."""
        return tuple(layer.out_features for layer in self.network.hidden_layers)

    @property
    def actor_parameters(self) -> int:
        """Return the weights and biases of what acts: no critic, no deviations, no quantiles.

        Of images, whose actor and critic share nearly all, those of the whole network.
        """
        if self.image_shape is not None:
            return self.num_parameters
        inputs = self.observation_shape[0] + self.appended_zeros
        widths = (inputs, *self.hidden_widths, self.actions.num_outputs)
        return sum((before + 1) * after for before, after in pairwise(widths))

    def train(self, mode: bool = True) -> "Teacher":
        """Stay in eval mode, whatever `mode` says: a teacher is frozen."""
        return super().train(False)

    def appending_zeros(self, count: int) -> "Teacher":
        """Return a copy that sees `count` features less, and takes them for zeros.

        Raises ValueError where it does not see a vector of more than `count` features.
        """
        if self.is_image or self.observation_shape[0] <= count:
            raise ValueError(f"observations of shape {self.observation_shape} have no {count} less")
        other = copy.deepcopy(self)
        other.appended_zeros += count
        other.observation_shape = (self.observation_shape[0] - count,)
        return other

    def in_precision(self, dtype: torch.dtype) -> "Teacher":
        """Return this teacher computing in `dtype`: itself, or a copy that is faster on images.

        In bfloat16 a policy moves by about 1e-5 nats; but Q-values of 3, the best two 0.03 apart,
        are then equal, or in another order. Vectors stay in float32, and so do agents of few bits,
        whose levels bfloat16 would move.
        """
        if dtype == self._dtype or not self.is_image or self.quantization is not None:
            return self
        # A copy, as evaluation goes on in float32 with the original.
        other = copy.deepcopy(self)
        other._dtype = dtype
        extractors = [m for m in other.network.modules() if isinstance(m, NatureCnn)]
        if self.scales_images and extractors:  # the division by 255 goes into the first layer
            for extractor in extractors:
                first = extractor.convolutions[0]
                assert isinstance(first, nn.Conv2d)
                first.weight.div_(255.0)
            other.scales_images = False
        other.network.to(dtype)
        # oneDNN's convolutions are faster channels-last, in bfloat16 above all.
        other.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return other

    def forward(self, observations: Tensor) -> TeacherOutputs:
        """Return labels and values for uint8 [batch, 4, 84, 84] or float32 [batch, d].

        Raises ValueError for observations of another shape, or images that are not uint8.
        """
        if tuple(observations.shape[1:]) != self.observation_shape:
            raise ValueError(
                f"observations have shape {tuple(observations.shape)};"
                f" this teacher sees [batch, {', '.join(map(str, self.observation_shape))}]"
            )
        outputs, values = self.network(self.preprocess(observations))
        return TeacherOutputs(self._labels(outputs), values.float().squeeze(-1))

    @property
    def judges_apart(self) -> bool:
        """Tell whether `act` and `judge` cost no more than `forward`: they share no layer."""
        network = self.network
        if not isinstance(network, ActorCriticNetwork | ContinuousNetwork):
            return False
        return not self.is_image and network.judges_apart

    def act(self, observations: Tensor) -> Tensor:
        """Return the labels of `forward` alone; only where it `judges_apart`."""
        assert isinstance(self.network, ActorCriticNetwork | ContinuousNetwork)
        return self._labels(self.network.act(self.preprocess(observations)))

    def judge(self, observations: Tensor, labels: Tensor) -> Tensor:
        """Return the values of `forward`, given its labels; only where it `judges_apart`."""
        assert isinstance(self.network, ActorCriticNetwork | ContinuousNetwork)
        # A critic that sees actions belongs to a tanh policy, whose labels are its outputs.
        values = self.network.judge(self.preprocess(observations), labels)
        return values.float().squeeze(-1)

    def _labels(self, outputs: Tensor) -> Tensor:
        """Return labels, in the units of the actions' range, of the network's outputs."""
        labels = outputs.float()
        if isinstance(self.actions, Box):
            means, *deviations = labels.split(self.actions.num_outputs, 1)
            labels = self.actions.labels_of(means, *deviations)
        return labels

    def preprocess(self, observations: Tensor) -> Tensor:
        """Return the network's inputs: images scaled, vectors normalized, as SB3 does it.

        Raises ValueError for images that are not uint8.
        """
        if self.is_image:
            if observations.dtype != torch.uint8:
                raise ValueError(f"images are {observations.dtype}; this teacher sees uint8")
            images = observations.to(self._dtype)
            if self._dtype != torch.float32 and images.dim() == 4:
                images = images.contiguous(memory_format=torch.channels_last)
            return images.div_(255.0) if self.scales_images else images
        if self.appended_zeros:
            observations = functional.pad(observations, (0, self.appended_zeros))
        if self._mean is None or self._deviation is None or self._clip is None:
            return observations.float()
        scaled = (observations.double() - self._mean) / self._deviation  # float64 as in SB3
        return scaled.clamp_(-self._clip, self._clip).float()


def _identity(
    archive_sha256: str,
    normalization: ObservationNormalization | None,
    quantization: StoredQuantization | StoredController | None,
) -> str:
    if normalization is None and quantization is None:
        return archive_sha256
    # Other statistics or ranges make another teacher: a run must not resume with them.
    digest = hashlib.sha256(bytes.fromhex(archive_sha256))
    if normalization is not None:
        for statistic in (normalization.mean, normalization.var):
            digest.update(statistic.tobytes())
        clip = normalization.clip_obs
        said = clip if isinstance(clip, float) else clip.tolist()
        digest.update(f"{normalization.epsilon} {said}".encode())
    if quantization is not None:
        digest.update(quantization.sha256.encode())
    return digest.hexdigest()


def load_teacher(
    source: str | Path,
    *,
    algo: str | None = None,
    env_id: str | None = None,
    num_actions: int | None = None,
    vec_normalize: str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Teacher:
    """Load a frozen teacher; nothing stored in its files is ever executed.

    `source` is an SB3 zip, an RL Zoo folder, `embedded`, or a hub id such as
    `sb3/ppo-BreakoutNoFrameskip-v4`. `algo`, `env_id` and `num_actions` are needed only
    where files and names do not tell; `vec_normalize` is a file of VecNormalize's statistics that
    does not lie beside the agent. Raises TeacherError for anything unusable.
    """
    files = find_teacher_files(source, vec_normalize)
    try:
        archive = read_sb3_archive(files.archive)
        teacher = _build_teacher(archive, files, algo, env_id, num_actions)
    except TeacherError as error:
        # Errors of readers name the file already; those of networks and spaces do not know it.
        if str(files.archive) in str(error):
            raise
        raise TeacherError(f"{files.archive}: {one_line(error)}", error.code) from error
    return teacher.to(device)


def load_recipe_teacher(settings: TeacherSettings) -> Teacher:
    """Load the teacher that a recipe names. Raises TeacherError."""
    return load_teacher(
        settings.source,
        algo=settings.algo,
        env_id=settings.env,
        vec_normalize=settings.vecnormalize,
    )


def _build_teacher(
    archive: Sb3Archive,
    files: TeacherFiles,
    algo: str | None,
    env_id: str | None,
    num_actions: int | None,
) -> Teacher:
    refuse_unsupported(archive, files.algo_hint)
    algo = choose_algo(archive, algo, files.algo_hint)
    env_id = env_id or files.env_id
    env_id = current_environment_id(env_id) if env_id else None
    num_outputs = output_size(archive.state_dict)
    actions = choose_actions(archive, algo, env_id, num_actions, num_outputs)
    network = build_network(archive, algo, num_outputs // actions.num_outputs)
    scales_images = read_policy_option(archive.data, "normalize_images") != "False"
    shape, image_shape = choose_observations(archive, network, 255.0 if scales_images else 1.0)
    parts = shown_parts(archive.observation_space.parts)
    if sum(part.size for part in parts) != torch.Size(shape).numel():
        parts = []  # a text that claims any size
    normalization = (
        read_vec_normalize(files.vec_normalize, [(part.key, part.size) for part in parts])
        if files.vec_normalize
        else None
    )
    if normalization is not None and len(shape) == 1:
        normalization = normalization.flat
    stacked = files.environment.frame_stack
    if normalization is not None and stacked > 1 and normalization.mean.size * stacked == shape[-1]:
        raise TeacherError(
            f"{files.vec_normalize}: statistics of single observations, of which this agent sees "
            f"{stacked} (frame_stack): QPD cannot stack what is normalized before",
            ErrorCode.TEACHER_SETTINGS,
        )
    if normalization is not None and normalization.mean.shape != shape:
        raise TeacherError(
            f"{files.vec_normalize}: statistics of shape {normalization.mean.shape};"
            f" this agent sees observations of shape {shape}",
            ErrorCode.TEACHER_SETTINGS,
        )
    if normalization is not None and image_shape == shape:
        raise TeacherError(
            f"{files.vec_normalize}: statistics of VecNormalize for images of bytes, which are not "
            "normalized; remove the file, or train the agent with norm_obs=False",
            ErrorCode.TEACHER_SETTINGS,
        )
    quantization = read_quantization(files.quantization) if files.quantization else None
    if quantization is not None and not quantization.is_active:
        quantization = None  # ranges were watched alone: it plays in float
    if quantization is not None:
        quantize_layers(actor_modules(network), quantization)
    teacher = Teacher(
        network,
        algo=algo,
        activation=activation_name(archive, algo),
        env_id=env_id,
        actions=actions,
        observation_shape=shape,
        image_shape=image_shape,
        # SB3 divides uint8 images by 255 inside the policy, unless normalize_images says no.
        scales_images=scales_images,
        archive=archive,
        files=files,
        normalization=normalization,
        quantization=quantization,
    )
    _try_forward(teacher)
    return teacher


def check_outputs(teacher: Teacher, name: str, values: Tensor) -> None:
    """Check a teacher's labels or values, which messages call `name`.

    Raises TeacherError where one is NaN or infinite, or so large that its square is in float32.
    """
    # Not `>=`: NaN compares false, and must be refused as well.
    if values.numel() and not bool(values.abs().amax() < _MAX_OUTPUT):
        raise TeacherError(
            f"{teacher.source}: its {name} are not finite, or beyond {_MAX_OUTPUT:.0e};"
            " use an agent whose training did not diverge",
            ErrorCode.TEACHER_NOT_FINITE,
        )


def _try_forward(teacher: Teacher) -> None:
    """Run a forward pass of extreme observations at loading.

    Raises TeacherError if the layers do not fit each other, or outputs are not finite.
    """
    extremes = (0, 255) if teacher.is_image else (0, 1, -1)
    dtype = torch.uint8 if teacher.is_image else torch.float32
    batch = torch.tensor(extremes, dtype=dtype).view(-1, *(1,) * len(teacher.observation_shape))
    try:
        with torch.inference_mode():
            outputs = teacher(batch.expand(-1, *teacher.observation_shape).contiguous())
    except RuntimeError as error:
        line = f"layers do not fit each other ({one_line(error)})"
        raise TeacherError(line, ErrorCode.TEACHER_DAMAGED) from error
    check_outputs(teacher, "outputs", outputs.labels)
    check_outputs(teacher, "values", outputs.values)
