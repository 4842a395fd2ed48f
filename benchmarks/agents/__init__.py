"""Agents: steps/s and returns of training them, in float and in few bits."""
