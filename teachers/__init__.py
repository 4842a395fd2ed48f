"""Teachers: trained Stable-Baselines3 agents, their environments and their play."""

from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.sb3_teacher import Teacher, TeacherOutputs, load_recipe_teacher, load_teacher

__all__ = [
    "Teacher",
    "TeacherError",
    "TeacherOutputs",
    "load_recipe_teacher",
    "load_teacher",
]
