"""An example lab. Copy it and put your hosts in.

A group is a role: its name decides which file of group_data/ applies (llama_cpp ->
group_data/llama_cpp.py), and a host may have several. Every host also has group_data/all.py and
the file with this file's name (group_data/lab.py), where the lab's models and instances go.
Neither settings nor secrets stand here: ssh takes users and keys from ~/.ssh/config or its agent.

Names are what ssh resolves. Where one is not, give the address beside it:
``("r740-01", {"ssh_hostname": "192.0.2.11"})``.
"""

# Dell PowerEdge R740, V100 PCIe cards (G1).
r740 = ["r740-01", "r740-02", "r740-03"]

# Supermicro SYS-420GP-TNRT (G1).
supermicro = ["smc-01", "smc-02"]

# A workstation with two PCIe cards and an NVLinked pair in a dock (T1).
dock = ["dock-01"]

# Roles.
llama_cpp = [*r740, *supermicro, *dock]
