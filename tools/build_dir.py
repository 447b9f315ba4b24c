"""Prints the CMake folder that setup.py builds hps._C in, for this interpreter.

Above it: the Makefile, which builds the native tests in the same folder. Below it: nothing.
"""

import sysconfig

print(f"build/cmake-{sysconfig.get_config_var('SOABI')}")
