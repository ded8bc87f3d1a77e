"""Who is in the cluster: membership, discovery, links between nodes, interest forwarding."""
