"""Runs pip in the jail. From here on no process can be started: whatever pip is
made to do, it cannot build what it has downloaded, for that is done by others."""
import os
import resource
import runpy
import sys

os.makedirs(os.environ["TMPDIR"], exist_ok=True)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if sys.argv[1]:  # where the package pip is; "" stands for the interpreter's own
    sys.path.insert(0, sys.argv[1])
sys.argv = ["pip"] + sys.argv[2:]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
