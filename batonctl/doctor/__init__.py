"""`baton doctor`: what is wrong on this machine or with a running stack, and how to fix it."""

from batonctl.doctor.examination import run_doctor

__all__ = ["run_doctor"]
