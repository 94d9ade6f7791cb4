"""`regard.plan`: the memory and the time that training takes, computed before it is started.

accelerators    devices: data sheets, and the share of them that training reaches
trace           what a step stores and computes, from a run on tensors without data
plan            memory and time for one device to a thousand
"""

from regard.training.plan.accelerators import ACCELERATORS, Accelerator
from regard.training.plan.plan import Plan, plan

__all__ = ["ACCELERATORS", "Accelerator", "Plan", "plan"]
