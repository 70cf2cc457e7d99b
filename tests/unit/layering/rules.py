"""What may stand where in the sources: docs/architecture.md's dependency rules and the house rules.

violations(path, text) returns one line for each breach; path is relative to the repository.
"""

import re

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

# Header (regular expression): the only places under src/ and kernels/ that may include it.
RESERVED_HEADERS = {
    r"(ATen|c10|caffe2)/": r"src/sworker/(model|attention|device|engine)/",
    r"torch/": r"(?!)",  # The umbrella header costs 20 s a file; ATen/ has all that is needed.
    r"infiniband/|rdma/": r"src/common/transport/verbs/",
    r"\w*intrin\.h": r"kernels/(avx2|avx512|amx|simd)/",
    r"cuda\w*\.h|ATen/cuda/|c10/cuda/": r"src/sworker/device/cuda/",
    r"gflags/": r"(.*/)?main\.cc$|src/common/flags/",
}

# Folder: the project's other folders that it may include from.
FOLDER_DEPENDENCIES = {
    "kernels": set(),
    "src/common/base": set(),
    # Which formats kv_dtype may name and how large a block is, the kernels say.
    "src/common/config": {"src/common/base", "kernels"},
    "src/common/wire": {"src/common/base", "src/common/config"},
    "src/common/traces": {"src/common/base"},
    "src/common/api": {"src/common/base", "src/common/config"},
    "src/common/host": {"src/common/base"},
    "src/common/transport": {"src/common/base", "src/common/config", "src/common/wire"},
    "src/sim": {"src/common", "src/plan", "src/sworker/scheduler", "kernels"},
    "src/rworker": {"src/common", "kernels"},
    "src/sworker": {"src/common", "src/plan", "kernels"},
    # Drives the workers' own libraries; the rest of the planner is pure.
    "src/plan/measure": {"src/common", "src/plan", "src/sworker", "src/rworker", "kernels"},
    "src/plan": {"src/common/base", "src/common/config", "kernels"},
}

# The scheduler is pure: it must run the same in a simulator.
SCHEDULER_FORBIDDEN = re.compile(
    r"common/(transport|base/clock|base/fd|api)|chrono|thread|mutex|condition_variable|fstream|iostream|random|"
    r"sys/|unistd\.h|glog/|zmq"
)

# Pieces joined here, so that this file keeps its own rules.
FORBIDDEN_TEXT = {
    re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"): "unfinished work belongs in an issue",
    re.compile(r"(?<![\w.$}/-])/(work|root|home)/\w"): "a path of one machine",
    re.compile(r"(pypi\.org|python" r"hosted|deb\.debian)"): "a registry's host name",
}
ENVIRONMENT = re.compile(r"\bgetenv\(|\benviron\.get\(|\benviron\[")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_cpp(path):
    return path.endswith((".h", ".cc", ".cu", ".inc"))


def folder_of(path):
    """The entry of FOLDER_DEPENDENCIES that path lies in."""
    return next((folder for folder in FOLDER_DEPENDENCIES if path.startswith(folder + "/")), None)


def owner_of_include(path, header):
    """The project's folder that a quoted header lies in."""
    if header.startswith("kernels/"):
        return "kernels"
    if "/" in header:
        return "src/" + header.rsplit("/", 1)[0]
    return path.rsplit("/", 1)[0]  # Beside the file that includes it.


def include_violations(path, line):
    match = INCLUDE.match(line)
    if not match or not path.startswith(("src/", "kernels/")):
        return
    quote, header = match.groups()
    for pattern, places in RESERVED_HEADERS.items():
        if re.match(pattern, header) and not re.match(places, path):
            yield f"{header} has no place here"
    if path.startswith("src/sworker/scheduler/") and SCHEDULER_FORBIDDEN.match(header):
        yield f"the scheduler is pure and must not include {header}"
    if path.startswith("kernels/") and quote == "<" and re.search(r"[./]", header):
        asks_the_system = path == "kernels/dispatch.cc" and header in ("sys/syscall.h", "unistd.h")  # for AMX's tiles
        if not re.fullmatch(r"\w*intrin\.h|cpuid\.h", header) and not asks_the_system:
            yield f"kernels include only the standard library, not {header}"
    folder = folder_of(path)
    if path == "src/plan/main.cc":
        folder = "src/plan/measure"  # wires all together
    if quote == '"' and folder:
        owner = owner_of_include(path, header) + "/"
        allowed = FOLDER_DEPENDENCIES[folder] | {folder}
        # A pure folder's impure one is not part of it.
        inside = owner.startswith("src/plan/measure/") and folder != "src/plan/measure"
        if inside or not any(owner.startswith(name + "/") for name in allowed):
            yield f"{folder} must not include from {owner[:-1]}"


def long_functions(path, lines):
    """C++ at the left margin, as clang-format leaves it: from the line that opens to its '}'."""
    start = None
    for number, line in enumerate(lines, 1):
        if re.match(r"(?!namespace|class|struct|enum|union|extern|#|//|using|constexpr \w+ k)[\w\[]", line) and start is None:
            start = number
        elif line.startswith(("}", "namespace", "class", "struct", "enum")) or (start and line == ""):
            # An empty line ends a declaration that never opened a body; inside one, lines are indented.
            if start and line.startswith("}"):
                if number - start + 1 > MAX_FUNCTION_LINES:
                    yield start, number - start + 1
                start = None
            elif start and not any(text.rstrip().endswith("{") for text in lines[start - 1 : number - 1]):
                start = None


def violations(path, text):
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        for pattern, reason in FORBIDDEN_TEXT.items():
            if pattern.search(line):
                found.append(f"{path}:{number}: {reason}: {line.strip()}")
        if path.startswith(("src/", "kernels/", "python/", "scripts/")) and ENVIRONMENT.search(line):
            found.append(f"{path}:{number}: no environment variable changes behaviour")
        if path.endswith("CMakeLists.txt") and folder_of(path) and re.search(r"file\(\s*GLOB", line):
            found.append(f"{path}:{number}: sources are listed, not globbed")
        if is_cpp(path):
            found += [f"{path}:{number}: {breach}" for breach in include_violations(path, line)]
    if len(lines) > MAX_FILE_LINES:
        found.append(f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES}")
    if path.endswith((".cc", ".cu")):
        found += [
            f"{path}:{start}: a function of {length} lines, at most {MAX_FUNCTION_LINES}"
            for start, length in long_functions(path, lines)
        ]
    return found
