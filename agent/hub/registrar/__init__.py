"""The hub's side of every link: which machine owns a domain, the hub's streams with their sources, and what
of a leaf has arrived."""
