"""Writes the text of the GPU kernels, all their headers in it, as a C++ string constant.

Above it: CMakeLists.txt, which compiles the constant into hps._C. Below it: csrc/gpu_cache. The
kernels are compiled at run time for the device at hand; with the text inside the native module they
need no header file there, and always belong to the structs that the module was built with.
"""

import re
import sys
from pathlib import Path

_INCLUDE = re.compile(r'#include "([^"]+)"\s*')
_PIECE = 8192  # compilers limit the length of one literal; neighbours are joined


def flatten(folder: Path, name: str, seen: set[str]) -> list[str]:
    """The lines of `name` with every quoted include in place of its line, each file once."""
    seen.add(name)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((folder / name).read_text().splitlines(), 1):
        match = _INCLUDE.fullmatch(line)
        if match is None:
            lines.append("" if line.strip() == "#pragma once" else line)
        elif match[1] in seen:
            lines.append("")
        else:
            lines += flatten(folder, match[1], seen)
            lines.append(f'#line {number + 1} "{name}"')
    return lines


def main() -> None:
    """python tools/embed_kernels.py CSRC ROOT.cu OUT.cc"""
    folder, name, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    text = "\n".join(flatten(folder, name, set())) + "\n"
    assert ')kernels"' not in text
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    literals = "\n".join(f'R"kernels({piece})kernels"' for piece in pieces)
    out.write_text(
        f"// {name} and its headers; made by tools/embed_kernels.py.\n"
        f"namespace hps {{\nextern const char* const kGpuKernelSource;\n"
        f"const char* const kGpuKernelSource =\n{literals};\n}}  // namespace hps\n"
    )


if __name__ == "__main__":
    main()
