"""Flags of `ray start --help` of Ray 2.60.0.

Generated from tests/engines/facts/ray.json; do not edit. A row is the spellings of a flag,
then how many words it takes (`0`, `1`, `2`, `?`, `+`), then `json` where the value is JSON,
`removed` where the engine refuses it by now, and `env=NAME` for the variable that sets it when no
flag does.
"""

SOURCE = "`ray start --help` of Ray 2.60.0"
VERSION = "2.60.0"
ABBREVIATES = False
ROWS = """
--node-ip-address 1
--address 1
--port 1
--object-manager-port 1
--node-manager-port 1
--min-worker-port 1
--max-worker-port 1
--worker-port-list 1
--ray-client-server-port 1
--object-store-memory 1
--num-cpus 1
--num-gpus 1
--resources 1
--head 0
--include-dashboard 1
--dashboard-host 1
--dashboard-port 1
--dashboard-agent-listen-port 1
--dashboard-agent-grpc-port 1
--runtime-env-agent-port 1
--block 0
--plasma-directory 1
--object-spilling-directory 1
--autoscaling-config 1
--no-redirect-output 0
--temp-dir 1
--metrics-export-port 1
--ray-debugger-external 0
--disable-usage-stats 0
--include-log-monitor 1
--enable-resource-isolation 0
--system-reserved-cpu 1
--system-reserved-memory 1
--cgroup-path 1
--proxy-server-url 1
--log-style 1
--log-color 1
--verbose -v 0
--help 0
"""
