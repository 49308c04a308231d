"""Start Ray's local cluster of several nodes on this machine: `python ray_cluster.py [NODES]`.

It prints its address, heeds "lose a node" and "find a node", and ends with its standard input.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    memory = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **memory})
    nodes = [cluster.add_node(num_cpus=2, **memory) for _ in range(count - 1)]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "lose a node" and nodes:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            nodes.append(cluster.add_node(num_cpus=2, **memory))
            cluster.wait_for_nodes()
        print("done", flush=True)
    cluster.shutdown()
