"""Begins to record in every Python process that is a rank, without a change to its code.

`muster run` puts this directory first on PYTHONPATH. Where RANK is not set, for launchers, and for the helper processes of
multiprocessing it does nothing but hand over to the sitecustomize that would have been found without it. Nothing here
may disturb the program: errors end in one line on standard error at most.
"""

import os
import sys

_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "muster", "pip", "ray", "srun", "mpirun", "horovodrun"}
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.", "deepspeed.", "muster.", "pip")


def _is_rank() -> bool:
    environ = os.environ
    if not environ.get("MUSTER_JOB") or not (environ.get("RANK") or environ.get("MUSTER_RANK")):
        return False
    words = sys.orig_argv[1:]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2:] if words[0] in ("-X", "-W") else words[1:]
    if not words:
        return True
    if words[0] == "-m":
        return not (len(words) > 1 and words[1].startswith(_LAUNCHER_MODULES))
    if words[0] == "-c":
        return not (len(words) > 1 and words[1].startswith("from multiprocessing."))
    return os.path.basename(words[0]) not in _LAUNCHERS


def _start() -> None:
    """Import muster.probe, also into an environment that does not have Muster: it needs only the standard library."""
    try:
        import muster.probe
    except ImportError:
        import importlib.util

        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            "muster", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules["muster"] = module
        spec.loader.exec_module(module)
        import muster.probe
    muster.probe.start()


def _hand_over() -> None:
    """Run the sitecustomize that this one stands in front of."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    if sys.version_info >= (3, 11) and _is_rank():
        _start()
except Exception as error:
    print(f"muster: not recording: {error}", file=sys.stderr)
_hand_over()
