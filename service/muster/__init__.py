"""Muster: is this distributed training job healthy, and if not, which rank, which host, and why?"""

__version__ = "0.1.0"
