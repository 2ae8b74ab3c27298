"""What `petiole demo` plays: a hub, two leaves, faults, the jobs and the proof."""
