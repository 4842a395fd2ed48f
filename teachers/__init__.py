"""Teachers: trained Stable-Baselines3 agents, their environments and their play."""

from teachers.errors import TeacherError
from teachers.sb3_teacher import Teacher, TeacherOutputs, load_teacher
from teachers.train_sb3 import train_teacher

__all__ = ["Teacher", "TeacherError", "TeacherOutputs", "load_teacher", "train_teacher"]
