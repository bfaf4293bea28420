"""The small program that runs on a host: probe, apply, check, lease.

It is typed, uses only the standard library, runs on Python 3.10 and newer, and travels with the
command on standard input, so that nothing has to be installed before. Imports inside the package
are relative: on the controller it is ``files.agent``, on a host ``agent``.

Protocol: ``<agent> VERB`` reads one JSON object (the request) from standard input and writes JSON
lines to standard output; the last line is ``{"end": VERB, "ok": true|false}``, with ``message``
(one sentence) where it is not ok. Without that line the answer is incomplete and nothing in it
counts. Lines ``{"alive": true}`` between say that the agent still runs.

Verb ``probe``. Request (every key optional but ``deadline_s``)::

    {"deadline_s": 20,
     "files": {"/etc/x": {"sha256": "…", "secret": false}},
     "directories": ["/opt/x"], "links": ["/opt/x/current"],
     "packages": ["curl"], "groups": ["g"], "users": ["u"],
     "units": ["a.service"], "sysctls": ["vm.swappiness"], "modules": ["nvidia"],
     "releases": {"/opt/llama.cpp": ["<fingerprint>"]},
     "models": {"tiny": {"root": "…", "revision": "…",
                         "files": {"a.gguf": {"size": 1, "sha256": "…"}}}},
     "instances": {"tiny": {"unit": "…", "host": "127.0.0.1", "port": 8080}},
     "free_space": ["/srv"],
     "platform": {"toolkit": {"nvcc": path}|null,
                  "driver": {"branch": 580, "packages": [names], "pins": "…"}|null,
                  "urls": [repositories]}}

One answer line before the end line, ``{"state": DOCUMENT}``; DOCUMENT has the parts below, each
a mapping or ``{"unknown": reason}``; an absent thing is null, a thing that could not be read is
``{"unknown": reason}``::

    {"system": {"id": "debian", "version": "13", "name": "Debian GNU/Linux 13 (trixie)",
                "kernel": "6.1…", "machine": "x86_64", "glibc": "2.41", "hostname": "…",
                "boot_id": "…", "cpus": 2, "memory_bytes": 1, "memory_available_bytes": 1,
                "python": "3.13.5", "uid": 0},
     "dmi": {"sys_vendor": "…", "product_name": "…"},
     "files": {path: {"kind": "file", "sha256": "…", "size": 1, "mode": "0644",
                      "owner": "root", "group": "root", "changed_at": 1.5, "text": "…"}},
     "directories": {path: {"kind": "directory", "mode": "0755", "owner": …, "group": …,
                            "changed_at": 1.5}},
     "links": {path: {"kind": "link", "target": "…", "changed_at": 1.5}},
     "packages": {name: {"version": "1.2-3", "status": "installed", "held": false}},
     "packages_state": {"interrupted": false, "manager": "apt"},
     "groups": {name: {"gid": 1}},
     "users": {name: {"uid": 1, "home": "…", "shell": "…", "groups": ["…"]}},
     "units": {name: {"load": "loaded", "active": "active", "sub": "running",
                      "enabled": "enabled", "need_reload": false, "pid": 1,
                      "stamp": "…"|null, "exe_deleted": false, "started_at": 1.5|null}},
     "sysctls": {key: {"value": "60"}},
     "modules": {name: {"loaded": true, "options": {"x": "1"}}},
     "releases": {root: {"current": "<fingerprint>"|null,
                         "present": {"<fingerprint>": {"sound": true, "reason": ""}}}},
     "models": {name: {"current": "<revision>"|null, "files": {path: {"state": "sound"|
                "absent"|"bad"|"unchecked", "size": 1, "reason": "…"}}, "metadata": {…}|null,
                "repaired_at": 1.5|null}},
     "instances": {name: {"listening": true, "health": 200|null}},
     "free_space": {path: {"bytes": 1}},
     "platform": {…see platform.py; only when asked},
     "leases": {"run": {…}|null},
     "parts": {part: {"seconds": 0.01}}}

``text`` (at most 64 KiB, UTF-8) is given for a file whose sha256 differs from the asked one and
that is not secret. A mode is four octal digits; times are seconds since 1970: of a path the last
change of its content, place or attributes (ctime), of a unit the start of its main process, of a
model the last replacement of files under a revision in use. The whole answer comes within
``deadline_s`` whatever hangs; the parts that hung are unknown with the reason
``"timed out after N s"``.

Verb ``apply``. Request ``{"run": id, "actions": [{"id": change id, "do": name, …,
"needs": [ids]}]}``. One line per event, flushed at once: ``{"id": …, "event": "start"}``,
``{"id": …, "event": "progress", "message": "…", "percent": 0..100|null}``,
``{"id": …, "event": "done", "changed": true|false, "message": ""}``, ``{"id": …, "event":
"failed", "message": one sentence}``, ``{"id": …, "event": "skipped", "message": …}`` (something
in its needs failed). An action that fails leaves the host as good as it was; the others go on.
The actions and their arguments are in ``actions.py``.

Verb ``lease``. Request ``{"run": id, "who": "user@controller", "policy": "refuse"|"wait",
"wait_s": 600}``. Lines: ``{"lease": "held"}``, or ``{"lease": "busy", "run": …, "who": …,
"since": ISO 8601, "doing": …}``. It then stays, and gives the lease back when its standard input
ends or no line arrives on it for 60 s.

Verb ``check FILE [--profile NAME]`` checks one model file; see ``check.py``.
"""
