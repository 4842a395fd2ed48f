"""Teachers: trained Stable-Baselines3 agents, their environments and their play."""

from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.sb3_teacher import Teacher, TeacherOutputs, load_recipe_teacher, load_teacher
from qpd.teachers.training.agent_training import AgentTraining

__all__ = [
    "AgentTraining",
    "Teacher",
    "TeacherError",
    "TeacherOutputs",
    "load_recipe_teacher",
    "load_teacher",
]
