"""The first lines of the agent on a host; sent as an argument, so kept short.

Reads the program from the first line of standard input and runs it from memory: nothing is
installed or written. Must compile and run on any Python 3, to be able to say that it is too old.
"""
# ruff: noqa: UP031, UP036

import os
import sys

VERB = sys.argv[1]
WANTED = ("_ctypes", "hashlib", "json", "socket", "subprocess", "threading", "zlib")


def answer(lines, status):
    os.write(1, ("\n".join(lines) + "\n").encode("ascii"))
    os._exit(status)


def fail(message):
    answer(['{"end": "%s", "ok": false, "message": "%s"}' % (VERB, message)], 3)


def more(data):
    while b"\n" not in data:
        part = os.read(0, 65536)
        if not part:
            break
        data += part
    return data


def lacking():
    if sys.version_info < (3, 10):
        return "python3 is %d.%d, 3.10 or newer is needed" % sys.version_info[:2]
    missing = []
    for name in WANTED:
        if name in sys.modules:
            if sys.modules[name] is None:
                missing.append(name)
        elif not any(finder.find_spec(name, None) for finder in sys.meta_path):
            missing.append(name)
    return "python3 lacks %s" % ", ".join(missing) if missing else ""


class Sources:
    def __init__(self, modules, spec):
        self.modules = modules
        self.spec = spec

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            return self.spec(name, self, origin="voltfleet", is_package=self.modules[name][0])
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = self.modules[module.__name__][1]
        exec(compile(source, module.__name__, "exec", 0, True), module.__dict__)  # noqa: S102


def boot():
    line, newline, rest = more(b"").partition(b"\n")
    if newline and not line.startswith(b"agent:"):
        # a password for sudo, which did not ask for it on this host
        line, newline, rest = more(rest).partition(b"\n")
    reason = lacking()
    if reason:
        more(rest)
        end = '{"end": "%s", "ok": %s, "message": "%s"}'
        ok = "true" if VERB == "probe" else "false"
        answer(['{"bootstrap": "%s"}' % reason, end % (VERB, ok, reason)], 0)
    if not newline:
        fail("the agent did not arrive whole on standard input")
    import binascii
    import json
    import zlib
    from importlib.machinery import ModuleSpec

    try:
        modules = json.loads(zlib.decompress(binascii.a2b_base64(line[6:])))
    except (ValueError, zlib.error):
        fail("the agent on standard input is damaged")
    sys.meta_path.insert(0, Sources(modules, ModuleSpec))
    try:
        from agent.__main__ import leave, main
    except Exception as error:
        fail("the agent does not start: " + json.dumps(repr(error))[1:-1])
    leave(main(sys.argv[1:], rest))


boot()
