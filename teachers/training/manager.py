"""The RL Zoo's manager, in two steps: what to train, checked; then the files, and the training.

Hyperparameters, wrappers, VecNormalize, frame stacks and noise are the zoo's work. Its manager
writes files while it sets up; this one writes nothing until `write_settings`.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import pickle
from collections import OrderedDict
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from rl_zoo3 import ALGOS
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from qpd.environments.source import EnvironmentSource, wrappers_of
from qpd.errors.codes import ErrorCode
from qpd.files.atomic import replace_file, write_bytes
from qpd.machine.compiled_graph import pays
from qpd.recipe.train_schema import TrainRecipe
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.training.checked_games import CheckedVecEnv
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.fast_learner import LEAST_TIMESTEPS, use_fast_learner
from qpd.teachers.training.gradient_counts import GradientCounts
from qpd.teachers.training.layer_norm import has_layer_norm, layer_normed
from qpd.teachers.training.low_precision_sac import LowPrecisionSAC, use_low_precision
from qpd.teachers.training.mixed_precision import use_mixed_precision
from qpd.teachers.training.quantization_aware import AgentQuantizers, QuantizationCallback
from qpd.teachers.training.sized_cnn import SizedNatureCNN
from qpd.teachers.training.start_from import settings_of_agent, start_from

DEFAULT_TIMESTEPS = 1_000_000  # for an environment that the zoo does not list


class TrainingManager(ExperimentManager):
    """The zoo's manager for a recipe of `qpd train`, with checked `hyperparameters`.

    `env_id` is gymnasium's name of the environment, without a module.
    """

    def __init__(self, recipe: TrainRecipe, env_id: str, hyperparameters: dict[str, Any]) -> None:
        train, environment = recipe.train, recipe.environment
        timesteps = -1 if train.timesteps is None else train.timesteps
        # What the zoo's command line would parse, as it writes it to args.yml.
        arguments = {
            "algo": train.algo,
            "env": train.env,
            "n_timesteps": timesteps,
            "seed": recipe.seed,
            "device": recipe.learning_device,
            "env_kwargs": dict(environment.kwargs) or None,
        }
        changed = dict(hyperparameters)
        if environment.wrappers is not None:
            changed["env_wrapper"] = list(environment.wrappers) or None
        if environment.frame_stack is not None:
            changed["frame_stack"] = environment.frame_stack
        super().__init__(
            argparse.Namespace(**arguments),
            train.algo,
            env_id,
            log_folder="",
            n_timesteps=timesteps,
            eval_freq=-1,  # no games on the way: `qpd evaluate` plays them afterwards
            hyperparams=changed,
            seed=recipe.seed,
            device=recipe.learning_device,
            log_interval=-2,  # no rows of SB3's own: the callback asks for them
            verbose=0,
        )
        self._recipe = recipe
        self.fitting_policy = "MlpPolicy"  # for what the environment shows, wrappers and all
        self.normalizes = True  # what a controller sees, unless the recipe says otherwise
        self.checkpoint: Path | None = None  # holds all that was taken from an agent to start from
        self._saved: dict[str, Any] = {}
        self.quantizers: AgentQuantizers | AgentController | None = None
        self.gradients: GradientCounts | None = None

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the zoo's file, with the recipe's settings in place of its own."""
        changed = self.custom_hyperparams or {}
        values = {**self._listed(), **changed}
        kwargs = {**(values.get("env_kwargs") or {}), **self._recipe.environment.kwargs}
        if kwargs:
            values["env_kwargs"] = kwargs
        for key in ("noise_type", "env_wrapper", "frame_stack"):
            if key in values and values[key] is None:  # `none` takes the zoo's away
                del values[key]
        if "noise_type" not in values:
            values.pop("noise_std", None)
            if "noise_std" in changed:
                raise TeacherError(
                    f"train.hyperparameters.noise_std={changed['noise_std']}: there is no noise to "
                    "have it; set noise_type=normal or ornstein-uhlenbeck as well",
                    ErrorCode.TEACHER_TRAINING,
                )
        final = inspect.signature(ALGOS[self.algo]).parameters.get("exploration_final_eps")
        if self._recipe.train.start_from is not None and final is not None:
            # The agent's own play, as its training ended, not the random play of one that begins.
            last = values.get("exploration_final_eps", final.default)
            values = {**values, "exploration_initial_eps": last, **changed}
        if values.get("optimize_memory_usage"):  # Stable-Baselines3 has no room for both
            values["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
        if self._recipe.quantization.controller is not None:
            values["normalize"] = self._controllers_normalization(changed.get("normalize"))
        if (widths := values.pop("net_arch", None)) is not None:
            # The zoo evaluates this text; of ours there are checked names and whole numbers in it.
            rest = values.get("policy_kwargs")
            rest = rest if isinstance(rest, str) and rest else "dict()"
            values["policy_kwargs"] = f"dict({rest}, net_arch={widths!r})"
        self._saved = {key: values[key] for key in sorted(values)}
        for key in ("layer_norm", "cnn_arch"):  # `_preprocess_hyperparams` knows them from `_saved`
            values.pop(key, None)
        if values.get("env_wrapper") is not None:
            given = wrappers_of(values["env_wrapper"])
            values["env_wrapper"] = [{each.name: each.arguments} for each in given]
            # The zoo's Monitor sits below, and would never hear of an episode that is cut here.
            if any(each.name.endswith(".TimeLimit") for each in given):
                values["env_wrapper"].append({"stable_baselines3.common.monitor.Monitor": {}})
        return values, OrderedDict(self._saved)

    def _controllers_normalization(self, asked: Any) -> Any:
        """Return VecNormalize's arguments as the paper trains, with what is asked for in place.

        Observations are normalized, rewards are not. Whole numbers cannot be.
        """
        if asked is False or (asked is None and not self.normalizes):
            return False
        changes = asked if isinstance(asked, dict) else {}
        return {"norm_obs": True, "norm_reward": False, **changes}

    def _listed(self) -> dict[str, Any]:
        """Return the zoo's settings for this environment, or for another version of it.

        For one that is new to the zoo: its `default`, where it has one, or only what SB3 must know.
        """
        listed = yaml.safe_load(Path(self.config).read_text(encoding="utf-8"))
        env_id: str = self.env_name.gym_id
        same = [name for name in listed if _version(name)[0] == _version(env_id)[0]]
        if env_id in listed or self._is_atari or same:
            name = env_id if env_id in listed else "atari" if self._is_atari else None
            settings = dict(listed[name or max(same, key=_version)])
            # A wrapper may show images where the zoo's agents see vectors.
            if settings.get("policy") == "MlpPolicy":
                settings["policy"] = self.fitting_policy
                if self.fitting_policy == "CnnPolicy" and settings.get("normalize"):
                    settings["normalize"] = {"norm_obs": False, "norm_reward": True}
            return settings
        settings = {"n_timesteps": DEFAULT_TIMESTEPS, **listed.get("default", {})}
        return {**settings, "policy": self.fitting_policy}

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        """Put classes into `policy_kwargs`, which the zoo has evaluated."""
        found = super()._preprocess_hyperparams(hyperparams)
        kwargs = found[0].setdefault("policy_kwargs", {})
        if (widths := self._saved.get("cnn_arch")) is not None:
            if found[0]["policy"] != "CnnPolicy":
                raise TeacherError(
                    "train.hyperparameters.cnn_arch: is CnnPolicy's, for images; net_arch has the "
                    "widths of hidden layers",
                    ErrorCode.TEACHER_TRAINING,
                )
            kwargs["features_extractor_class"] = SizedNatureCNN
            kwargs["features_extractor_kwargs"] = {
                "channels": tuple(widths[:3]),
                "features_dim": widths[3],
            }
            # What SB3 has for NatureCNN itself; SAC and TQC have one for all.
            if self.algo not in ("sac", "tqc"):
                own_arch = [256, 256] if self.algo in ("td3", "ddpg") else []
                kwargs.setdefault("net_arch", own_arch)
        if self._recipe.train.start_from is not None:
            saved = None if self.checkpoint is None else self.checkpoint / "agent.zip"
            kwargs.update(settings_of_agent(self._recipe.train, found[0]["policy"], saved))
        if self._saved.get("layer_norm"):
            own = nn.Tanh if self.algo in ACTOR_CRITIC_ALGORITHMS else nn.ReLU  # SB3's defaults
            kwargs["activation_fn"] = layer_normed(kwargs.get("activation_fn", own))
        return found

    def environment_settings(self) -> tuple[dict[str, Any], tuple[Any, ...], int]:
        """Return what is done to each environment: its arguments, wrappers, stacked observations.

        Raises EnvironmentConfigError.
        """
        values, _ = self.read_hyperparameters()
        stack = values.get("frame_stack") or 1
        return values.get("env_kwargs") or {}, wrappers_of(values.get("env_wrapper")), stack

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create the environments as the zoo does, checked, without its monitor files.

        Ours can resume. Raises EnvironmentConfigError.
        """
        kwargs, wrappers, stack = self.environment_settings()
        source = EnvironmentSource(self._recipe.train.env, kwargs, wrappers, stack)
        checked: Any = partial(CheckedVecEnv, name=str(source))  # the zoo does no more than call it
        self.vec_env_class = checked
        return super().create_envs(n_envs, eval_env, no_log=True)

    def create_log_folder(self) -> None:
        """Leave that to `write_settings`."""

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        """Leave that to `write_settings`."""

    def prepare(self, model: BaseAlgorithm) -> None:
        """Change the model before it learns or resumes.

        The place for what is neither the zoo's nor the algorithm's: arithmetic, quantizers.
        Raises TeacherError where the agent to start from does not fit.
        """
        if self._saved.get("layer_norm") and not has_layer_norm(model.policy):
            raise TeacherError(
                "train.hyperparameters.layer_norm: this policy has no hidden layers behind its "
                "features; expected an MlpPolicy, or net_arch",
                ErrorCode.TEACHER_TRAINING,
            )
        if self._recipe.train.start_from is not None and self.checkpoint is None:
            start_from(model, self._recipe.train)
        if self._recipe.quantization.bits is not None:
            self.quantizers = AgentQuantizers(model, self._recipe.quantization)
        if (widths := self._recipe.quantization.controller) is not None:
            self.quantizers = AgentController(model, widths, self._recipe.quantization.grid)
        precision = self._recipe.precision
        is_sac, is_fast = self._recipe.train.algo == "sac", self._recipe.uses_fast_learner
        if is_fast:
            narrow = self._recipe.train.products == "bfloat16"
            low = None if precision.low is None else precision
            use_fast_learner(
                model,
                torch.bfloat16 if narrow else None,
                self._controller,
                low,
                self.may_compile
                and pays(self._recipe.train.compile, int(self.n_timesteps), LEAST_TIMESTEPS),
            )
        elif precision.low is not None and is_sac:
            use_low_precision(model, precision, self._controller)
        if precision.gradient_exponents is not None:  # before what skips updates
            self.gradients = GradientCounts(model, precision.gradient_exponents)
        if precision.low is not None and not is_sac and not is_fast:
            use_mixed_precision(model, precision)

    @property
    def may_compile(self) -> bool:
        """Tell whether updates are compiled where there is a compiler."""
        train, precision = self._recipe.train, self._recipe.precision
        is_long = int(self.n_timesteps) >= LEAST_TIMESTEPS
        # Gradients by activations are counted by hooks, which nothing compiled would call.
        is_counted = (
            self._recipe.quantization.controller is not None
            and precision.gradient_exponents is not None
        )
        is_plain = self._recipe.uses_fast_learner and precision.low is None and not is_counted
        return is_plain and (train.compile == "on" or (train.compile == "auto" and is_long))

    def extra_callbacks(self) -> list[BaseCallback]:
        """Return callbacks beside the one that keeps the run directory."""
        settings = self._recipe.quantization
        if self.quantizers is None:
            return []
        total = int(self.n_timesteps)
        return [QuantizationCallback(self.quantizers, settings.share_in_float, total)]

    @property
    def _controller(self) -> AgentController | None:
        return self.quantizers if isinstance(self.quantizers, AgentController) else None

    def write_settings(self, folder: Path) -> None:
        """Write args.yml, config.yml and command.txt into the zoo's place in a run directory."""
        self.save_path = str(folder)
        self.params_path = os.path.join(folder, self.env_name)
        os.makedirs(self.params_path, exist_ok=True)
        super()._save_config(OrderedDict(self._saved))

    def learn(self, model: BaseAlgorithm) -> None:
        """Train to the end. Ctrl-C is the caller's, unlike in the zoo."""
        try:
            # Counted from 0 even when it resumes: the callback puts back what a checkpoint holds,
            # and schedules see the whole length.
            learn: Any = model.learn  # SB3 takes None here, but some of its classes do not say so
            learn(int(self.n_timesteps), callback=self.callbacks, log_interval=None)
        finally:
            if model.env is not None:
                model.env.close()

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """Write VecNormalize's statistics, ranges, then the agent, each complete or not at all."""
        normalize = model.get_vec_normalize_env()
        if normalize is not None:
            write_bytes(Path(self.params_path, "vecnormalize.pkl"), pickle.dumps(normalize))
        if self.quantizers is not None:
            self.quantizers.save(Path(self.save_path))
        handed_over = model.hand_over() if isinstance(model, LowPrecisionSAC) else nullcontext()
        with replace_file(self.agent_file) as file, handed_over:
            model.save(cast(io.BufferedIOBase, file))

    @property
    def agent_file(self) -> Path:
        """The agent's zip."""
        return Path(self.save_path, f"{self.env_name}.zip")


def _version(env_id: str) -> tuple[str, int]:
    """Split `HalfCheetah-v4` into name and version; one without a version is version 0."""
    name, _, number = env_id.rpartition("-v")
    return (name, int(number)) if name and number.isdecimal() else (env_id, 0)
