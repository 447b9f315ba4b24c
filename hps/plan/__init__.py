"""Sizing of a cluster before there is one: `hps plan`, explained in docs/cluster_sizing.md."""

from hps.plan.plan import Plan, make_plan
from hps.plan.question import PlanQuestion
from hps.plan.report import format_plan

__all__ = ["Plan", "PlanQuestion", "format_plan", "make_plan"]
